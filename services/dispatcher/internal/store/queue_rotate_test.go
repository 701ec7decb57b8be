package store_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/seal"
	"postrider.dev/services/dispatcher/internal/store"
)

// masterKeys are settings of master keys, each named by a letter and filled with it.
func masterKeys(t testing.TB, letters string) seal.Masters {
	t.Helper()
	var texts []string
	for _, l := range letters {
		texts = append(texts, string(l)+":"+base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(l)}, seal.KeyBytes)))
	}
	m, err := seal.ParseMasters(strings.Join(texts, ","))
	require.NoError(t, err)
	return m
}

// withMasters is another dispatcher that has these master keys.
func (c *cold) withMasters(letters string) *store.Control {
	return store.NewControl(store.New(c.database.OpenAs("dispatcher", store.Settings()), store.WithMasters(masterKeys(c.t, letters))), c.enc, c.dec)
}

func (c *cold) encrypted(control *store.Control, name string) store.Queue {
	c.t.Helper()
	done, err := control.Configure(c.t.Context(), by("a"), name, queue.Patch{Set: queue.Options{Encryption: ptr(true)}})
	require.NoError(c.t, err)
	return done.Queue
}

// rewrapAll brings all keys that the control knows under its first master.
func rewrapAll(t testing.TB, control *store.Control, most int) error {
	t.Helper()
	for after := int32(0); ; {
		step, err := control.RewrapKeys(t.Context(), after, most)
		if err != nil || step.Last == 0 {
			return err
		}
		after = step.Last
	}
}

func TestAfterARewrapTheOldMasterKeyIsNotNeededAndRacersHarmNothing(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	old := c.withMasters("m")
	for i := range 20 {
		c.encrypted(old, fmt.Sprint("q", i))
	}
	c.encrypted(c.withMasters("x"), "foreign")

	both := []*store.Control{c.withMasters("nm"), c.withMasters("nm"), c.withMasters("nm")}
	noErrors(t, race(6, func(i int) error { return rewrapAll(t, both[i%3], 1+3*i) }))

	left, err := both[0].KeysOfOtherMasters(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]int{"x": 2}, left, "what is not known here is told and left alone")
	alone := c.withMasters("n")
	for i := range 20 {
		name := fmt.Sprint("q", i)
		now, err := alone.FindQueue(t.Context(), "a", name)
		require.NoError(t, err)
		require.NoError(t, now.Usable(), name)
		before, err := both[1].FindQueue(t.Context(), "a", name)
		require.NoError(t, err)
		require.Equal(t, before.Hash("p"), now.Hash("p"), "the same key, in another wrapping")
		gone, err := old.FindQueue(t.Context(), "a", name)
		require.NoError(t, err)
		require.ErrorIs(t, gone.Usable(), store.ErrKeyMissing)
	}
	foreign, err := c.withMasters("x").FindQueue(t.Context(), "a", "foreign")
	require.NoError(t, err)
	require.NoError(t, foreign.Usable())

	step, err := c.withMasters("").RewrapKeys(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Zero(t, step)
	none, err := c.withMasters("").KeysOfOtherMasters(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]int{"n": 40, "x": 2}, none)
}

func TestARewrapThatIsCutOffAnywhereLeavesEachKeyReadableAndIsDoneByTheNext(t *testing.T) {
	t.Parallel()
	made := 0
	everyCut(t, func(b *bench) (func(*store.Store) error, func() error) {
		made++
		secret := bytes.Repeat([]byte{byte(made)}, seal.KeyBytes)
		w := seal.Wrapped{Queue: 1, ID: int32(made), Purpose: "data"}
		require.NoError(b.t, masterKeys(b.t, "m").Wrap(&w, secret))
		b.exec("INSERT INTO dispatcher.queue_keys (id, queue_id, purpose, master_id, wrapped) VALUES ($1, $2, $3, $4, $5)", w.ID, w.Queue, w.Purpose, w.Master, w.Bytes)
		act := func(s *store.Store) (err error) {
			store.WithMasters(masterKeys(b.t, "nm"))(s)
			for range 5 {
				if err = rewrapAll(b.t, store.NewControl(s, nil, nil), 10); err == nil {
					return nil
				}
			}
			return err
		}
		return act, func() error {
			now := w
			now.Bytes = scan[[]byte](b, "SELECT wrapped FROM dispatcher.queue_keys WHERE id = $1", w.ID)
			now.Master = scan[string](b, "SELECT master_id FROM dispatcher.queue_keys WHERE id = $1", w.ID)
			got, err := masterKeys(b.t, "n").Unwrap(now)
			if err == nil && !bytes.Equal(secret, got) {
				err = errAnotherKey
			}
			return err
		}
	})
}

var errAnotherKey = errors.New("it is another key now")

func TestRacingRotationsGiveAKeyEachAndAllAgreeOnTheNewest(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	first := c.withMasters("m")
	q := c.encrypted(first, "q")
	controls := []*store.Control{first, c.withMasters("m"), c.withMasters("m")}
	var rotated [9]store.Queue

	noErrors(t, race(len(rotated), func(i int) (err error) {
		rotated[i], err = controls[i%3].RotateKey(t.Context(), by("a"), "q")
		return err
	}))

	ids, newest := map[int32]bool{}, q
	for _, r := range rotated {
		ids[r.Key().ID()] = true
		if r.ConfigVersion > newest.ConfigVersion {
			newest = r
		}
		require.Equal(t, q.Hash("p"), r.Hash("p"), "partitions stay where they are")
		require.Equal(t, q.BodyHash(7), r.BodyHash(7))
		require.Equal(t, q.DedupeKey(q.Shards[0], 1, "p", "k"), r.DedupeKey(q.Shards[0], 1, "p", "k"))
	}
	require.Len(t, ids, len(rotated))
	require.Equal(t, q.ConfigVersion+int64(len(rotated)), newest.ConfigVersion)
	for _, control := range controls {
		now, err := control.FindQueue(t.Context(), "a", "q")
		require.NoError(t, err)
		require.Equal(t, newest.Key().ID(), now.Key().ID())
	}
	require.Equal(t, newest.ConfigVersion, scan[int64](c.bench, "SELECT config_version FROM dispatcher.shards WHERE id = $1", q.Shards[0]))
	require.Len(t, c.audited(), 1+len(rotated))
}

func TestARotationIsRefusedWhereThereIsNothingToRotateOrNoKeyAndThenDoesNothing(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	c.queue("a", "clear")
	c.encrypted(c.withMasters("m"), "q")
	keys := func() int { return scan[int](c.bench, "SELECT count(*) FROM dispatcher.queue_keys") }

	for name, want := range map[string]error{"clear": store.ErrNotEncrypted, "nobody": store.ErrQueueNotFound} {
		_, err := c.withMasters("m").RotateKey(t.Context(), by("a"), name)
		require.ErrorIs(t, err, want)
	}
	_, err := c.withMasters("m").RotateKey(t.Context(), by("b"), "q")
	require.ErrorIs(t, err, store.ErrQueueNotFound, "another tenant's")
	for _, masters := range []string{"", "n"} {
		_, err = c.withMasters(masters).RotateKey(t.Context(), by("a"), "q")
		require.ErrorIs(t, err, store.ErrKeyMissing)
	}
	require.Equal(t, 2, keys())

	c.breakAudit()
	_, err = c.withMasters("m").RotateKey(t.Context(), by("a"), "q")
	require.Error(t, err)
	require.Equal(t, 2, keys(), "no effect without its entry")
	c.mendAudit()
	c.exec("INSERT INTO dispatcher.queue_keys SELECT id - 100000 - i, queue_id, 'data', master_id, wrapped FROM dispatcher.queue_keys, generate_series(1, 9999) i WHERE purpose = 'data'")
	_, err = c.withMasters("m").RotateKey(t.Context(), by("a"), "q")
	require.ErrorIs(t, err, store.ErrTooManyKeys)
}

package store

import (
	"context"
	"fmt"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/seal"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// kept is what a dead letter keeps of its message, as columns. Under a key, headers are all of it but the payload, and the texts are empty.
type kept struct {
	partition   *string // nil: the message was trimmed
	clientID    string
	contentType string
	headers     []byte
	payload     []byte
	lastError   string
	key         int32
}

func keptOf(d *window.DeadLetter, c *window.Change) kept {
	x := kept{headers: []byte{}}
	if !c.Private {
		x.lastError = cleanText(d.LastError)
	}
	m := d.Snapshot
	if m == nil {
		return x
	}
	if c.Private {
		return sealedOf(d.ID, cleanText(d.LastError), m, c.Key)
	}
	partition := cleanText(m.Partition)
	x.partition, x.clientID, x.contentType = &partition, cleanText(m.ClientID), cleanText(m.ContentType)
	x.headers, x.payload = EncodeHeaders(m.Headers), notNil(m.Payload)
	return x
}

// sealedOf keeps a message of an encrypted queue. The payload is apart, so that a list need not read it.
func sealedOf(id DeadLetterID, lastError string, m *message.Message, key *seal.Key) kept {
	rest := *m
	rest.Payload = nil
	return kept{
		partition: new(string), key: key.ID(),
		headers: key.Seal(ofLetter(id), message.AppendFrame(appendText(nil, lastError), &rest)),
		payload: key.Seal(ofPayload(id), m.Payload),
	}
}

func ofLetter(id DeadLetterID) seal.Place  { return seal.InRecord("dead letter", id[:]) }
func ofPayload(id DeadLetterID) seal.Place { return seal.InRecord("dead letter's payload", id[:]) }

// openLetters fills in what is sealed of dead letters. Where the key of one is missing, an error that matches ErrKeyMissing is returned.
func (s *Store) openLetters(ctx context.Context, on querier, letters []DeadLetter) error {
	ids := make([]int32, 0, len(letters))
	for i := range letters {
		ids = append(ids, letters[i].key)
	}
	keys, err := s.dataKeys(ctx, on, ids)
	if err != nil {
		return err
	}
	for i := range letters {
		if d := &letters[i]; d.key != 0 {
			if err := d.open(keys[d.key]); err != nil {
				return fmt.Errorf("dead letter %x: %w", d.ID, err)
			}
		}
	}
	return nil
}

func (d *DeadLetter) open(key *seal.Key) error {
	plain, err := key.Open(ofLetter(d.ID), d.sealed)
	if err != nil {
		return err
	}
	lastError, frame, ok := cutText(plain)
	if !ok {
		return errHeaders
	}
	payload := d.Payload
	if d.Message, err = message.ParseFrame(frame); err != nil {
		return err
	}
	d.LastError, d.Payload, d.sealed = lastError, nil, nil
	d.PayloadBytes = max(d.PayloadBytes-seal.Overhead, 0)
	if payload != nil {
		d.Payload, err = key.Open(ofPayload(d.ID), payload)
		d.Payload = notNil(d.Payload)
	}
	return err
}

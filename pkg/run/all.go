package run

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
)

// Part is a piece of a program that runs until its context ends or it fails.
type Part struct {
	Name string
	Run  func(ctx context.Context) error
}

// ErrPanic is matched by the error that a panic in a Part becomes.
var ErrPanic = errors.New("panic")

// errExited is how a part ends that calls runtime.Goexit, as a failed assertion in a test does.
var errExited = errors.New("its goroutine exited")

// All runs the parts side by side and returns when every one has ended.
//
// The first part that ends, in failure or not, ends the others by cancelling their context. The result joins the parts' failures, each under its
// part's name; a part that ends with context.Canceled after the cancellation did as it was told, which is no failure. A panic in a part is a
// failure that matches ErrPanic and carries the stack. Without parts, All waits for ctx.
func All(ctx context.Context, parts ...Part) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if len(parts) == 0 {
		<-ctx.Done()
	}
	return wait(cancel, launch(ctx, parts))
}

// Layers runs groups of parts that stop in order: the last group is told to stop first, and each group before it only when all later ones have
// ended. So front doors drain while the engine they call still runs:
//
//	run.Layers(ctx, []run.Part{engine, reaper}, []run.Part{grpc, http})
//
// All groups start at once. The end of ctx, or of any part of any group, begins the stopping. The result is as for All.
func Layers(ctx context.Context, layers ...[]Part) error {
	begin, cancel := context.WithCancel(ctx)
	defer cancel()
	ends := make([]context.CancelFunc, len(layers))
	errs := make([]error, len(layers))
	waits := make([]func() error, len(layers))
	for i, parts := range layers {
		inner, end := context.WithCancel(context.WithoutCancel(ctx))
		defer end()
		ends[i] = end
		results := launch(inner, parts)
		noticed := make(chan error, 1)
		go func() { noticed <- wait(cancel, results) }() // ends with its parts; awaited below
		waits[i] = func() error { return <-noticed }
	}
	<-begin.Done()
	for i := len(layers) - 1; i >= 0; i-- {
		ends[i]()
		errs[i] = waits[i]()
	}
	return errors.Join(errs...)
}

// launch starts the parts; the channel has one result for each and is long enough to hold all.
func launch(ctx context.Context, parts []Part) chan error {
	results := make(chan error, len(parts))
	for _, p := range parts {
		go func() {
			err := fmt.Errorf("%s: %w", p.Name, errExited)
			defer func() { results <- err }()
			err = p.run(ctx)
		}()
	}
	return results
}

// wait calls stop at the first result and returns when all are in.
func wait(stop func(), results chan error) error {
	var errs []error
	for range cap(results) {
		errs = append(errs, <-results)
		stop()
	}
	return errors.Join(errs...)
}

// run returns nil for a part that ended well or as it was told.
func (p Part) run(ctx context.Context) error {
	err := p.guarded(ctx)
	if err != nil && ctx.Err() != nil && obeyed(err, context.Cause(ctx)) {
		return nil
	}
	return err
}

// guarded returns the part's failure under its name, a panic included.
func (p Part) guarded(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s: %w: %v\n%s", p.Name, ErrPanic, v, debug.Stack())
		}
	}()
	if err := p.Run(ctx); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return nil
}

// obeyed reports whether err says nothing but that the context ended: every leaf of it is context.Canceled or the cause of the end.
func obeyed(err, cause error) bool {
	switch e := err.(type) { //nolint:errorlint // it walks the tree itself, since errors.Is would accept a failure joined to a cancellation.
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if !obeyed(err, cause) {
				return false
			}
		}
		return len(e.Unwrap()) > 0
	case interface{ Unwrap() error }:
		return e.Unwrap() != nil && obeyed(e.Unwrap(), cause)
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, cause)
}

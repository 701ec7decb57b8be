// Package obs makes what a process is observed by: a zap logger with fixed keys, a Prometheus registry and an OpenTelemetry tracer provider.
//
// Nothing here is global: each constructor returns a value that the process lends to its services, so two copies of a service can live in one
// process and a test can read exactly its own metrics.
package obs

import (
	"context"
	"fmt"
	"io"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc/codes"

	"postrider.dev/pkg/apierr"
)

// NewLogger returns a logger that writes lines at or above level ("debug", "info", "warn", "error") to w, one per Write, as JSON ("json") or
// for people ("console").
func NewLogger(w io.Writer, level, format string) (*zap.Logger, error) {
	lvl, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	var enc zapcore.Encoder
	switch format {
	case "json":
		enc = zapcore.NewJSONEncoder(encoding(zapcore.LowercaseLevelEncoder))
	case "console":
		enc = zapcore.NewConsoleEncoder(encoding(zapcore.CapitalLevelEncoder))
	default:
		return nil, fmt.Errorf("log format: %q is neither json nor console", format)
	}
	core := zapcore.NewCore(enc, zapcore.Lock(zapcore.AddSync(w)), lvl)
	return zap.New(core, zap.AddCaller(), zap.AddStacktrace(zapcore.DPanicLevel)), nil
}

func encoding(level zapcore.LevelEncoder) zapcore.EncoderConfig {
	return zapcore.EncoderConfig{
		TimeKey:        "time",
		LevelKey:       "level",
		NameKey:        "logger",
		CallerKey:      "caller",
		MessageKey:     "msg",
		StacktraceKey:  "stack",
		LineEnding:     zapcore.DefaultLineEnding,
		EncodeLevel:    level,
		EncodeTime:     utcMillis,
		EncodeDuration: zapcore.StringDurationEncoder,
		EncodeCaller:   zapcore.ShortCallerEncoder,
	}
}

// utcMillis writes RFC 3339 in UTC with milliseconds, so that the lines of several hosts sort as text.
func utcMillis(t time.Time, enc zapcore.PrimitiveArrayEncoder) {
	enc.AppendString(t.UTC().Format("2006-01-02T15:04:05.000Z"))
}

// LogFailure writes the line about a failed request, as loud as the failure deserves: what is our fault is an error, what the surroundings
// did is a warning, what the caller did wrong shows at debug level only. It is where a request's error is handled, once.
func LogFailure(ctx context.Context, log *zap.Logger, e *apierr.Error, fields ...zap.Field) {
	line := log.Check(failureLevel(e.Code), "request failed")
	if line == nil {
		return
	}
	line.Write(append(append(fields, Request(ctx)...), Failure(e)...)...)
}

func failureLevel(c codes.Code) zapcore.Level {
	if c == codes.Internal || c == codes.Unknown || c == codes.DataLoss {
		return zapcore.ErrorLevel
	}
	if c == codes.Unavailable || c == codes.DeadlineExceeded {
		return zapcore.WarnLevel
	}
	return zapcore.DebugLevel
}

// Sampled returns log with equal lines below error level limited to 20 a second and then one in a hundred, so that an outage does not drown
// what else is said.
func Sampled(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return calmer{Core: core, calm: zapcore.NewSamplerWithOptions(core, time.Second, 20, 100)}
	}))
}

// calmer sends lines below error level through a sampler.
type calmer struct {
	zapcore.Core

	calm zapcore.Core
}

func (c calmer) With(fields []zapcore.Field) zapcore.Core {
	return calmer{Core: c.Core.With(fields), calm: c.calm.With(fields)}
}

func (c calmer) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if e.Level >= zapcore.ErrorLevel {
		return c.Core.Check(e, ce)
	}
	return c.calm.Check(e, ce)
}

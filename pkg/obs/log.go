// Package obs makes what a process is observed by: a zap logger with fixed keys, a Prometheus registry and an OpenTelemetry tracer provider.
//
// Nothing here is global: each constructor returns a value that the process lends to its services, so two copies of a service can live in one
// process and a test can read exactly its own metrics.
package obs

import (
	"fmt"
	"io"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
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

package domain

import (
	"mime"
	"strings"
)

// Content types that stand for an absent one.
const (
	MediaJSON  = "application/json"
	MediaBytes = "application/octet-stream"
)

// IsJSON reports whether a payload of this content type is JSON text: application/json or any +json type, parameters aside.
func IsJSON(contentType string) bool {
	if contentType == MediaJSON {
		return true
	}
	t, _, _ := strings.Cut(contentType, ";")
	t = strings.ToLower(strings.TrimSpace(t))
	return t == MediaJSON || strings.HasSuffix(t, "+json")
}

func isMediaType(v string) bool {
	if v == MediaJSON || v == MediaBytes {
		return true
	}
	t, _, err := mime.ParseMediaType(v)
	return err == nil && strings.Count(t, "/") == 1 && !strings.HasPrefix(t, "/") && !strings.HasSuffix(t, "/")
}

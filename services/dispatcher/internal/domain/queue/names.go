package queue

import (
	"strings"
	"time"
	"unicode/utf8"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
)

// Limits that no option moves.
const (
	MaxNameBytes     = 255
	MaxHeaders       = 64
	MaxHeaderBytes   = 8 << 10 // names and values together
	MaxReasonBytes   = 1 << 10 // of a nack or reject; longer ones are cut
	NodeMessageBytes = 16 << 20
)

// CheckName refuses anything but 1 to 255 bytes of UTF-8 without NUL. It serves queues, groups, partitions, client ids, holders.
func CheckName(field, name string) error {
	if name == "" {
		return invalid.New(invalid.NameEmpty, field, "must not be empty")
	}
	return CheckOptionalName(field, name)
}

// CheckOptionalName is CheckName for what may be absent.
func CheckOptionalName(field, name string) error {
	switch {
	case len(name) > MaxNameBytes:
		return invalid.New(invalid.NameTooLong, field, "is %d bytes, at most %d are allowed", len(name), MaxNameBytes)
	case !utf8.ValidString(name):
		return invalid.New(invalid.NameNotUTF8, field, "must be UTF-8")
	case strings.IndexByte(name, 0) >= 0:
		return invalid.New(invalid.NameHasNUL, field, "must not hold NUL")
	}
	return nil
}

// CheckMessage refuses what breaks a limit of names, headers or size. A message that passes can be written and read back.
func (c Config) CheckMessage(m *message.Message) error {
	if err := CheckName("partition", m.Partition); err != nil {
		return err
	}
	if err := CheckOptionalName("client_id", m.ClientID); err != nil {
		return err
	}
	if err := CheckOptionalName("content_type", m.ContentType); err != nil {
		return err
	}
	size, err := checkHeaders(m.Headers)
	if err != nil {
		return err
	}
	if size += len(m.Payload); size > c.MaxMessageBytes {
		return invalid.New(invalid.MessageTooLarge, "payload", "payload and headers are %d bytes, max_message_bytes is %d", size, c.MaxMessageBytes)
	}
	return nil
}

// CheckDeliveryDelay refuses to keep a message longer than MaxDeliveryDelay, or for less than no time.
func CheckDeliveryDelay(field string, d time.Duration) error {
	if d < 0 || d > MaxDeliveryDelay {
		return invalid.New(invalid.OutOfRange, field, "is %v ahead, 0 to %v is allowed", d, MaxDeliveryDelay)
	}
	return nil
}

func checkHeaders(headers []message.Header) (size int, err error) {
	if len(headers) > MaxHeaders {
		return 0, invalid.New(invalid.TooManyHeaders, "headers", "are %d, at most %d are allowed", len(headers), MaxHeaders)
	}
	for i, h := range headers {
		if err := CheckName("headers.name", h.Name); err != nil {
			return 0, err
		}
		if !utf8.ValidString(h.Value) || strings.IndexByte(h.Value, 0) >= 0 {
			return 0, invalid.New(invalid.TextInvalid, "headers.value", "of %q must be UTF-8 without NUL", h.Name)
		}
		for _, earlier := range headers[:i] {
			if earlier.Name == h.Name {
				return 0, invalid.New(invalid.HeaderRepeated, "headers.name", "%q is given twice", h.Name)
			}
		}
		size += len(h.Name) + len(h.Value)
	}
	if size > MaxHeaderBytes {
		return 0, invalid.New(invalid.HeadersTooLarge, "headers", "are %d bytes, at most %d are allowed", size, MaxHeaderBytes)
	}
	return size, nil
}

// CleanReason makes a consumer's error text storable: valid UTF-8 without NUL, at most MaxReasonBytes. A failure is never lost because
// its text was bad.
func CleanReason(reason string) string {
	reason = strings.ReplaceAll(strings.ToValidUTF8(reason, "\uFFFD"), "\x00", "\uFFFD")
	if len(reason) <= MaxReasonBytes {
		return reason
	}
	cut := MaxReasonBytes
	for cut > 0 && !utf8.RuneStart(reason[cut]) {
		cut--
	}
	return reason[:cut]
}

// Package demo is the demonstration: real messages through two hosts, one of which is killed, with every promise checked at the end.
package demo

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// Webhook is one line of the corpus.
type Webhook struct {
	Event     string          `json:"event"`
	Name      string          `json:"name"`
	Partition string          `json:"partition"`
	Payload   json.RawMessage `json:"payload"`
}

const maxLine = 1 << 20

// ReadCorpus reads an NDJSON file of webhooks.
func ReadCorpus(path string) ([]Webhook, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("corpus: %w", err)
	}
	defer f.Close() //nolint:errcheck // read only
	var list []Webhook
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var w Webhook
		if err := json.Unmarshal(lines.Bytes(), &w); err != nil {
			return nil, fmt.Errorf("corpus line %d: %w", len(list)+1, err)
		}
		list = append(list, w)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("corpus: %w", err)
	}
	return list, nil
}

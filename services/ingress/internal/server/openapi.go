package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"unicode"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/proto/gen/openapi"
	"postrider.dev/services/ingress/internal/domain"
)

// node is a piece of the OpenAPI document.
type node = map[string]any

// openapiDocument is the generated document with what the generator cannot know: our names, the bodies and answers of our own handlers, errors, and the
// routes that are no RPC.
func openapiDocument(policies []domain.Policy) ([]byte, error) {
	var doc node
	if err := json.Unmarshal(openapi.Document(), &doc); err != nil {
		return nil, fmt.Errorf("openapi document: %w", err)
	}
	definitions, paths := child(doc, "definitions"), child(doc, "paths")
	for _, d := range definitions {
		if def, ok := d.(node); ok {
			snakeProperties(def)
		}
	}
	describePayloads(definitions)
	definitions["Problem"] = problemSchema()
	describeAuth(doc)
	for _, p := range policies {
		if p.Method == "" {
			continue
		}
		op := operation(paths, p)
		snakeParameters(op)
		child(op, "responses")["default"] = node{"description": "An error, with a stable code.", "schema": ref("Problem")}
		op["x-required-role"] = p.Role.String()
		if p.Role.String() == "none" {
			op["security"] = []any{}
		}
	}
	describeHot(paths)
	describeSubscribe(paths)
	describeKeys(paths, policies)
	return json.Marshal(doc)
}

// operation returns the operation of a route, made if it is no RPC's.
func operation(paths node, p domain.Policy) node {
	op := child(child(paths, p.Pattern), strings.ToLower(p.Method))
	if op["operationId"] != nil {
		return op
	}
	op["operationId"] = strings.Trim(p.Pattern, "/")
	op["tags"] = []any{"Meta"}
	op["summary"] = metaSummaries()[p.Pattern]
	child(op, "responses")["200"] = node{"description": "A successful response."}
	return op
}

func metaSummaries() map[string]string {
	return map[string]string{
		"/livez":        "Whether the process answers. Looks at nothing else.",
		"/readyz":       "Whether this node can do its job now, with reasons; 503 if not.",
		"/openapi.json": "This document.",
		"/docs":         "This document for people.",
		sharedStatePath: "For clients written for Queen: enabled is always false, with the reason; maintenanceMode and popMaintenanceMode are the modes.",
	}
}

func child(n node, name string) node {
	if c, ok := n[name].(node); ok {
		return c
	}
	c := node{}
	n[name] = c
	return c
}

func ref(name string) node { return node{"$ref": "#/definitions/" + name} }

func snakeProperties(def node) {
	props, ok := def["properties"].(node)
	if !ok {
		return
	}
	out := node{}
	for name, p := range props {
		out[snake(name)] = p
	}
	def["properties"] = out
}

func snakeParameters(op node) {
	params, _ := op["parameters"].([]any)
	for _, p := range params {
		if param, ok := p.(node); ok && param["in"] == "query" {
			if name, ok := param["name"].(string); ok {
				param["name"] = snake(name)
			}
		}
	}
}

func snake(name string) string {
	var b strings.Builder
	for _, r := range name {
		if unicode.IsUpper(r) {
			b.WriteByte('_')
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// describePayloads replaces the bytes of a payload by the two ways it is written.
func describePayloads(definitions node) {
	for _, name := range []string{"PushItem", "Delivery", "DeadLetter", "LookupMessageResponse", "SubscribedMessage", "PeekedMessage"} {
		props := child(child(definitions, name), "properties")
		props["payload"] = node{"description": "Any JSON value, where the content type is JSON. Its bytes are kept exactly, white space included; at most 128 levels."}
		props["payload_base64"] = node{"type": "string", "format": "byte", "description": "Any other payload, instead of payload."}
	}
	body := child(child(definitions, "PushBody"), "properties")
	for name, p := range child(child(definitions, "PushItem"), "properties") {
		if name != "idempotency_key" {
			body[name] = p
		}
	}
	child(definitions, "PushBody")["description"] = "Either items, or the fields of a single message directly (its idempotency_key is then the message's own)."
}

func describeAuth(doc node) {
	definitions := child(doc, "securityDefinitions")
	definitions["apiKeyHeader"] = node{"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "An API key."}
	doc["security"] = []any{node{"apiKey": []any{}}, node{"apiKeyHeader": []any{}}}
}

func problemSchema() node {
	text := func(what string) node { return node{"type": "string", "description": what} }
	return node{
		"type":        "object",
		"description": "An error as application/problem+json (RFC 9457).",
		"properties": node{
			"type": text("A URI made of the code."), "title": text("The code in words."), "code": text("Stable code, such as STALE_EPOCH."),
			"status": node{"type": "integer", "format": "int32"}, "detail": text("For people; may change."), "field": text("The field at fault, as a path."),
			"meta":           node{"type": "object", "additionalProperties": node{"type": "string"}},
			"retry_after_ms": node{"type": "integer", "format": "int64", "description": "When to try again; also in the Retry-After header."},
			"results":        node{"type": "array", "items": ref("PushResult"), "description": "Of a push none of whose items was accepted; of a transaction that was refused TransactResults."},
		},
	}
}

// describeHot writes down what our own handlers of the hot verbs take and answer.
func describeHot(paths node) {
	push := child(child(paths, "/v1/queues/{queue}/messages"), "post")
	answer := func(what, name string) node { return node{"description": what, "schema": ref(name)} }
	push["responses"] = node{
		"201":     answer("All items were accepted.", "PushResponse"),
		"207":     answer("Some items were accepted; the others say why not.", "PushResponse"),
		"default": answer("No item was accepted: the first one's error, with all results.", "Problem"),
	}
	addHeader(push, "traceparent", "Put into the headers of messages that have none.")
	pop := child(child(paths, "/v1/queues/{queue}/pop"), "post")
	responses := child(pop, "responses")
	responses["204"] = node{"description": "Nothing was ready in time. With the header Postrider-Draining: true, ask again, elsewhere."}
	if params, ok := pop["parameters"].([]any); ok {
		for _, p := range params {
			if param, ok := p.(node); ok && param["in"] == "body" {
				param["required"] = false
			}
		}
	}
}

// describeSubscribe writes down what a subscription is over HTTP.
func describeSubscribe(paths node) {
	op := child(child(paths, "/v1/queues/{queue}/subscribe"), "get")
	op["produces"] = []any{"text/event-stream"}
	op["responses"] = node{
		"200": node{"description": "Server-sent events, until either side ends: event message has a SubscribedMessage as its data, gap a SubscribeGap, " +
			"closed a SubscribeClosed; the id of each is its token. A heartbeat is a comment with an id."},
		"101":     node{"description": "A WebSocket, where the request asks for an upgrade: each text message is a SubscribeEvent."},
		"default": child(op, "responses")["default"],
	}
	addHeader(op, lastEventID, "The token to resume by; goes before from and resume. Browsers send it when they connect again.")
	params, _ := op["parameters"].([]any)
	for _, p := range params {
		if param, ok := p.(node); ok && param["name"] == "headers" {
			param["description"] = "Only messages that have this header with exactly this value; one parameter a header: headers[name]=value."
		}
	}
}

func addHeader(op node, name, what string) {
	params, _ := op["parameters"].([]any)
	op["parameters"] = append(params, node{"name": name, "in": "header", "required": false, "type": "string", "description": what})
}

// describeKeys writes down what an idempotency key does on each route that changes something.
func describeKeys(paths node, policies []domain.Policy) {
	const once = "A repeat does nothing and answers what the first one answered, with the header Idempotency-Replayed, for "
	for _, p := range policies {
		if p.Method == "" || p.Method == http.MethodGet {
			continue
		}
		op := operation(paths, p)
		_, verb, _ := strings.Cut(p.Pattern, "/{queue}/")
		switch verb {
		case "messages":
			addHeader(op, idempotency.Header, once+"the queue's idempotency window. It covers the whole request.")
		case "pop":
			addHeader(op, idempotency.Header, "Ignored: each pop is a lease of its own.")
			continue
		case "ack", "renew", "release":
			addHeader(op, idempotency.Header, "Ignored: by the lease a repeat changes nothing and says so.")
			continue
		case "/v1/transactions":
			addHeader(op, idempotency.Header, once+"1 h. Another request with it is refused (422), and one while the first still runs (409).")
		default:
			addHeader(op, idempotency.Header, once+"24 h. Another request with it is refused (422), and one while the first still runs (409).")
		}
		for status, answer := range child(op, "responses") {
			if answer, ok := answer.(node); ok && strings.HasPrefix(status, "2") {
				child(answer, "headers")[idempotency.ReplayedHeader] = node{"type": "string", "description": "true where this is the first answer again."}
			}
		}
	}
}

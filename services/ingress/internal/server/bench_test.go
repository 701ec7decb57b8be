package server_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"postrider.dev/pkg/clock"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/server"
)

// forgetful is a fakeExchange that keeps nothing.
type forgetful struct{ fakeExchange }

func (*forgetful) Do(_ context.Context, op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
	return accept(op)
}

// BenchmarkRESTPush is the cost of the front door alone: routing, key, scan, rules, answer; without a network and without a dispatcher.
func BenchmarkRESTPush(b *testing.B) {
	router := chi.NewRouter()
	srv, err := server.New(server.Config{Timeout: 1 << 40, MaxBodyBytes: domain.RequestBytes}, server.Needs{
		Exchange: &forgetful{}, Keys: fakeKeys{}, Store: &fakeStore{}, Ready: func(http.ResponseWriter, *http.Request) {}, Clock: clock.Real{}, Log: zap.NewNop(),
	})
	if err != nil {
		b.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///none", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // never used
	if err := srv.Mount(b.Context(), router, conn); err != nil {
		b.Fatal(err)
	}
	item := `{"partition":"p-17","payload":{"event":"push","id":186853002,"text":"` + strings.Repeat("x", 200) + `"},"headers":{"event":"push"}}`
	for name, body := range map[string]string{"batch=1": item, "batch=100": `{"items":[` + strings.Repeat(item+",", 99) + item + `]}`} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				req := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/queues/q/messages", strings.NewReader(body))
				req.Header.Set("Authorization", "Bearer "+adminKey)
				req.Header.Set("Content-Type", "application/json")
				rec := httptest.NewRecorder()
				router.ServeHTTP(rec, req)
				if rec.Code != http.StatusCreated {
					b.Fatal(rec.Body.String())
				}
			}
		})
	}
}

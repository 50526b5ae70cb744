package wire

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A proxy whose server answers early is done with the call while its transport
// still reads the body: http.Server has taken the response back by then.
func TestBodyMayBeReadAfterItsCall(t *testing.T) {
	for name, end := range map[string]func(w *io.PipeWriter){
		"more comes":     func(w *io.PipeWriter) { _, _ = w.Write([]byte("more")) },
		"the body ends":  func(w *io.PipeWriter) { _ = w.Close() },
		"the body fails": func(w *io.PipeWriter) { _ = w.CloseWithError(io.ErrUnexpectedEOF) },
	} {
		t.Run(name, func(t *testing.T) {
			returned, read := make(chan struct{}), make(chan struct{})
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer LimitUnary(w, r, maxBytes, BodyTimeout)()
				body := r.Body
				go func() {
					defer close(read)
					<-returned
					_, _ = io.Copy(io.Discard, body)
				}()
				w.WriteHeader(http.StatusTooManyRequests)
			}))
			server.EnableHTTP2 = true
			server.StartTLS()
			t.Cleanup(server.Close)
			in, out := io.Pipe()
			res, err := server.Client().Post(server.URL, "application/json", in)
			if err != nil {
				t.Fatal(err)
			}
			// The stream has ended for the server once its answer has.
			if _, err := io.Copy(io.Discard, res.Body); err != nil {
				t.Fatal(err)
			}
			close(returned)
			end(out)
			_ = res.Body.Close()
			select {
			case <-read:
			case <-time.After(10 * time.Second):
				t.Fatal("the body is still being read")
			}
		})
	}
}

func TestBodyHasATimeLimit(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer LimitUnary(w, r, maxBytes, 50*time.Millisecond)()
		if _, err := io.ReadAll(r.Body); err != nil {
			w.WriteHeader(http.StatusRequestTimeout)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	in, out := io.Pipe()
	t.Cleanup(func() { _ = out.Close() })
	res, err := server.Client().Post(server.URL, "application/json", in)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusRequestTimeout {
		t.Fatalf("a body that does not come is answered %d", res.StatusCode)
	}
}

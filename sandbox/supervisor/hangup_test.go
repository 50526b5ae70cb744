package supervisor

import (
	"testing"
)

// Input that ends before the terminal is there hangs it up when the command
// runs: the leader, which waits for its start, must not take the message.
func TestTerminalClosedBeforeItIsThere(t *testing.T) {
	for range 10 {
		f := interactive(t, size24x80, "bash", "-c", "trap 'exit 4' HUP; while :; do sleep 0.02; done")
		h := f.start(t)
		for {
			s, err := h.WriteInput(t.Context(), InputChunk{Writer: "t", Data: []byte("x"), Close: true})
			if err != nil {
				t.Fatal(err)
			}
			if s.Closed {
				break
			}
		}
		exit := wait(t, h)
		if exit.Kind == KindStartFailed || exit.Kind == KindTimedOut {
			t.Fatalf("%+v", exit)
		}
	}
}

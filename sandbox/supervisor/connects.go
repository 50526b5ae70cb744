package supervisor

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// connectPatience is more than init needs for both addresses.
const connectPatience = 2*connectLimit + time.Second

// connects are the requests for a connection that init has not answered yet.
type connects struct {
	last    uint32
	waiting map[uint32]parked
}

// connectReply is the shim's answer to "connect PORT"; a socket comes with it
// unless there is a refusal or an error number.
type connectReply struct {
	Refusal string `json:"refusal,omitempty"`
	Errno   int    `json:"errno,omitempty"`
}

func (a connectReply) encode() []byte {
	b, err := json.Marshal(a)
	if err != nil {
		return []byte(err.Error())
	}
	return b
}

// connect asks init, or says why not. Init hears nothing before the leader
// runs: until then the leader itself reads from the control socket.
func (r *run) connect(conn int, request []byte) (refusal string) {
	port, err := strconv.ParseUint(strings.TrimPrefix(string(request), askConnect), 10, 16)
	switch {
	case err != nil || port == 0:
		return refusedMalformed
	case r.spec.Forward != nil && int(port) == r.spec.Forward.Port:
		return refusedGateway
	case r.leader == 0 || r.out.end != nil || r.killed:
		return refusedNotRunning
	case len(r.connects.waiting) == maxConnects:
		return refusedBusy
	}
	r.connects.last++
	id := r.connects.last
	if err := send(r.child.control, connectRequest{id, uint16(port)}.encode()); err != nil {
		return refusedNotRunning
	}
	if r.connects.waiting == nil {
		r.connects.waiting = make(map[uint32]parked)
	}
	r.connects.waiting[id] = parked{conn, time.Now().Add(connectPatience)}
	return ""
}

// connected hands on what init has made.
func (r *run) connected(msg []byte, file int) {
	a, ok := parseConnectAnswer(msg)
	p, found := r.connects.waiting[a.id]
	if !ok || !found {
		return
	}
	delete(r.connects.waiting, a.id)
	defer unix.Close(p.conn)
	if a.errno == 0 && file >= 0 {
		_ = sendFile(p.conn, connectReply{}.encode(), file)
		return
	}
	_ = send(p.conn, connectReply{Errno: int(a.errno)}.encode())
}

func (c *connects) expire(now time.Time) {
	for id, p := range c.waiting {
		if !now.Before(p.until) {
			_ = send(p.conn, connectReply{Errno: int(unix.ETIMEDOUT)}.encode())
			unix.Close(p.conn)
			delete(c.waiting, id)
		}
	}
}

func (c *connects) wakeAt() (at time.Time) {
	for _, p := range c.waiting {
		at = earliest(at, p.until)
	}
	return at
}

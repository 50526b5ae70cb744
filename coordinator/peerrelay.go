package coordinator

import (
	"net/http"
	"net/http/httputil"
	"net/url"

	"skerry.internal/proto/link"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// serveFetch relays what one runner reads from another over the link that the
// other dialled. The source checks the grant; this coordinator vouches for who asks.
func (c *Coordinator) serveFetch() http.Handler {
	refuse := c.refuser()
	base, err := url.Parse(link.BaseURL)
	if err != nil {
		panic("coordinator: " + err.Error()) // it is a constant
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		source, reader := r.Header.Get(skerryv1.HeaderSource), caller(r.Context()).subject
		live := c.links.get(source)
		if live == nil || live.ended() {
			refuse(w, r, unreachable(source))
			return
		}
		proxy := &httputil.ReverseProxy{
			Transport:     live.conn,
			FlushInterval: -1, // a message at a time
			ErrorLog:      nil,
			Rewrite: func(p *httputil.ProxyRequest) {
				p.SetURL(base)
				p.Out.Header.Del("Authorization")
				p.Out.Header.Del(skerryv1.HeaderSource)
				p.Out.Header.Set(skerryv1.HeaderReceiver, reader)
			},
			ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
				c.logger.DebugContext(r.Context(), "relay ended", "source", source, "reader", reader, "error", err)
				refuse(w, r, unreachable(source).Because(err))
			},
		}
		proxy.ServeHTTP(w, r)
	})
}

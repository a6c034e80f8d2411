// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

const (
	callTimeout = 10 * time.Second
	tryTimeout  = 5 * time.Second // for the first of two tries
	maxRequest  = 1 << 20         // bytes of a request's body

	// fairChance is the deadline of a caller from which on we blame the candidate for missing it.
	fairChance = time.Second
)

// Route says how a call goes. A caller puts it into the context of a request.
type Route struct {
	Avoid string // name of a candidate to be used only if there is no other that answers: to ask the second best
	Used  string // name of the candidate whose answer, or failure, the call returned; empty: none was asked
}

type routeKey struct{}

// WithRoute returns a context for one request. r may be read when RoundTrip has returned.
func WithRoute(ctx context.Context, r *Route) context.Context {
	return context.WithValue(ctx, routeKey{}, r)
}

// RoundTrip sends a request to the candidate in use, and once more to another one if that fails. It takes at most 10 s, reads the whole
// answer, and leaves no connection to the caller. Of the request's URL nothing is used.
//
// A request may reach the service twice: when the first candidate fails, it may have taken it nevertheless. One that has a body and no
// GetBody is sent to one candidate only, as such cannot be sent again: its caller needs to know what became of it.
//
// A status of 5xx or 429 is a failure; without another good candidate the answer is returned as it is. A redirect is a failure too,
// never followed nor returned. While every candidate has asked to be left alone (429), RoundTrip answers a 429 of its own at once, with
// a Retry-After, and sends nothing. What belongs to the wrong cluster is never asked. Before the first checks are through RoundTrip
// waits for them. An error is an [*Error], [ErrNoCandidate], or the caller's own context's.
func (p *Pool) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := readBody(req)
	if err != nil {
		return nil, err
	}
	route, ok := req.Context().Value(routeKey{}).(*Route)
	if !ok {
		route = new(Route)
	}
	ctx, cancel := context.WithTimeout(req.Context(), callTimeout)
	defer cancel()
	select {
	case <-p.ready:
	case <-ctx.Done():
		if req.Context().Err() != nil {
			return nil, req.Context().Err()
		}
		return nil, ErrNoCandidate
	}

	repeatable := req.Body == nil || req.GetBody != nil
	c, l, another := p.first(route.Avoid)
	if c == nil {
		return p.unasked(req)
	}
	resp, f := p.try(ctx, req, body, c, l, another && repeatable)
	route.Used = c.name
	if f.kind != "" && repeatable && ctx.Err() == nil {
		if second, l := p.second(c, route.Avoid); second != nil {
			c = second
			resp, f = p.try(ctx, req, body, c, l, false)
			route.Used = c.name
		}
	}
	switch {
	case resp != nil:
		return resp, nil
	case req.Context().Err() != nil:
		return nil, req.Context().Err()
	}
	return nil, f.err(c.name)
}

// readBody takes the body out of a request.
func readBody(req *http.Request) ([]byte, error) {
	if req.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, maxRequest+1))
	if cerr := req.Body.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, fmt.Errorf("read request: %w", err)
	}
	if len(body) > maxRequest {
		return nil, fmt.Errorf("request of more than %d bytes", maxRequest)
	}
	return body, nil
}

// first returns where a call goes, and whether there is another candidate that answers.
func (p *Pool) first(avoid string) (c *candidate, l *link, another bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	c = p.best(now, func(c *candidate) bool { return c.name == avoid })
	if c == nil || c.rank(now) == dead && avoid != "" {
		c = p.best(now, nil)
	}
	if c == nil {
		return nil, nil, false
	}
	next := p.best(now, func(other *candidate) bool { return other == c || other.name == avoid })
	return c, p.connect(c), next != nil && next.rank(now) > dead
}

// second returns where a call goes that failed at the first candidate, or nil.
func (p *Pool) second(first *candidate, avoid string) (*candidate, *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	c := p.best(now, func(c *candidate) bool { return c == first || c.name == avoid })
	if c == nil || c.rank(now) == dead {
		return nil, nil
	}
	return c, p.connect(c)
}

// unasked answers a call for which there is nobody to ask now.
func (p *Pool) unasked(req *http.Request) (*http.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.candidates) == 0 {
		return nil, ErrNoCandidate
	}
	var until time.Time
	for _, c := range p.candidates {
		if c.kind != FaultWrongCluster && (until.IsZero() || c.silentUntil.Before(until)) {
			until = c.silentUntil
		}
	}
	if until.IsZero() {
		c := p.candidates[0]
		return nil, fault{kind: c.kind, text: c.reason}.err(c.name)
	}
	seconds := (max(time.Until(until), 0) + time.Second - 1) / time.Second
	return &http.Response{
		Status:     "429 Too Many Requests",
		StatusCode: http.StatusTooManyRequests,
		Proto:      "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:  http.Header{"Retry-After": {strconv.FormatInt(int64(seconds), 10)}},
		Body:    http.NoBody,
		Request: req,
	}, nil
}

// try sends the request to one candidate over a link that it releases, and books the outcome. A response may come with a fault.
func (p *Pool) try(ctx context.Context, req *http.Request, body []byte, c *candidate, l *link, another bool) (*http.Response, fault) {
	defer l.release()
	if another {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, tryTimeout)
		defer cancel()
	}
	start := time.Now()
	resp, _, f := p.exchange(ctx, req, body, c, l)

	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.choose()
	switch {
	case f.kind == "":
		now := time.Now()
		c.ok++
		c.lastOK = now
		if !c.good && !c.up { // only a check can say whether the answer made sense, but it need not wait for its turn
			c.nextCheck = earlier(c.nextCheck, later(now, c.lastFail.Add(usedInterval)))
			p.poke()
		}
	case l.wasCut(): // because of what somebody else found out meanwhile
		if !c.good {
			f.kind, f.text = c.kind, c.reason
		}
	case req.Context().Err() == nil:
		p.failed(c, f)
	case errors.Is(req.Context().Err(), context.DeadlineExceeded) && time.Since(start) >= fairChance:
		p.failed(c, f)
	}
	return resp, f
}

// exchange sends the request to one candidate and reads the answer.
func (p *Pool) exchange(ctx context.Context, req *http.Request, body []byte, c *candidate, l *link) (*http.Response, time.Duration, fault) {
	out := req.Clone(ctx)
	c.address(out)
	resp, latency, err := l.roundTrip(out, body)
	if err != nil {
		return nil, 0, transportFault(err, p.mask)
	}
	resp.Request = req // not the one with the secrets
	f := statusFault(resp)
	if f.kind == FaultInvalid {
		return nil, 0, f
	}
	return resp, latency, f
}

// probe is the way of a check to its candidate.
type probe struct {
	pool *Pool
	c    *candidate
	link *link

	fault   fault         // of the last request
	latency time.Duration // the shortest of its requests
}

// RoundTrip is called by one goroutine at a time.
func (r *probe) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := readBody(req)
	if err != nil {
		return nil, err
	}
	resp, latency, f := r.pool.exchange(req.Context(), req, body, r.c, r.link)
	r.fault = f
	if resp == nil {
		return nil, f.err(r.c.name)
	}
	if r.latency == 0 || latency < r.latency {
		r.latency = latency
	}
	return resp, nil
}

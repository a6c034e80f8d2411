// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// maxBody is the largest request in bytes, as nodes have it by default.
const maxBody = 50 << 10

// handler answers HTTP requests at one address.
type handler struct {
	*Ledger
	address Address
	turn    atomic.Uint64
}

// connection is what a request knows of the connection it came on.
type connection struct {
	*conn
	node Node // if nodes are pinned
}

type connectionKey struct{}

func (h *handler) connContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	k := connection{conn: c.(*conn)}
	if h.address.Pinned {
		k.node = h.nextNode()
	}
	return context.WithValue(ctx, connectionKey{}, k)
}

func (h *handler) nextNode() Node {
	return h.address.Nodes[(h.turn.Add(1)-1)%uint64(len(h.address.Nodes))]
}

// rpcRequest is one JSON-RPC call.
type rpcRequest struct {
	Version string            `json:"jsonrpc"`
	ID      json.RawMessage   `json:"id"`
	Method  string            `json:"method"`
	Params  []json.RawMessage `json:"params"`
}

type rpcResponse struct {
	Version string          `json:"jsonrpc"`
	Result  *any            `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
	ID      json.RawMessage `json:"id"`
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "Used HTTP Method is not allowed. POST or OPTIONS is required", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if len(body) > maxBody {
		http.Error(w, "request is too large", http.StatusRequestEntityTooLarge)
		return
	}
	body = bytes.TrimSpace(body)
	batch := bytes.HasPrefix(body, []byte("["))
	var calls []rpcRequest
	if batch {
		err = json.Unmarshal(body, &calls)
	} else {
		calls = make([]rpcRequest, 1)
		err = json.Unmarshal(body, &calls[0])
	}
	if err != nil || len(calls) == 0 {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		failed := &rpcError{Code: -32700, Message: "Parse error"}
		_ = json.NewEncoder(w).Encode(rpcResponse{Version: "2.0", Error: failed, ID: json.RawMessage("null")}) // the client may have left
		return
	}
	h.serve(w, r, calls, batch)
}

// spoilers are the faults that take an answer's place, those first that leave nothing of it.
func spoilers() []Kind {
	return []Kind{Silence, Reset, Unavailable, UnavailableJSON, RateLimited, Nonsense, Truncate}
}

// serve carries the calls out and answers them, as far as faults let it.
func (h *handler) serve(w http.ResponseWriter, r *http.Request, calls []rpcRequest, batch bool) {
	on := r.Context().Value(connectionKey{}).(connection)
	node := on.node
	if !h.address.Pinned {
		node = h.nextNode()
	}
	requests := make([]Request, len(calls))
	faults := make([]map[Kind]*injected, len(calls))
	var spoilt *injected
	var delay time.Duration

	h.mu.Lock()
	now := time.Now()
	for i, c := range calls {
		requests[i] = Request{Time: now, Address: h.address.Name, Node: node.Name, Method: c.Method, Proto: r.Proto, URI: r.RequestURI}
		faults[i] = h.strike(now, h.address.Name, node.Name, c.Method)
		if f := faults[i][Delay]; f != nil {
			delay = max(delay, f.Wait)
		}
		for _, k := range spoilers() {
			if f := faults[i][k]; f != nil && spoilt == nil {
				spoilt = f
			}
		}
	}
	first := len(h.requests)
	for i := range requests {
		if spoilt != nil {
			requests[i].Fault = spoilt.Kind
		}
		h.requests = append(h.requests, requests[i])
	}
	h.mu.Unlock()
	h.tell(Received, requests)

	var body []byte
	if spoilt == nil || spoilt.After || spoilt.Kind == Truncate {
		body = h.perform(node, calls, batch, faults, requests, first)
		h.tell(Done, requests)
	}
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	if spoilt != nil {
		spoil(w, r, on, spoilt, calls[0].ID, body)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the client may have left
	_ = http.NewResponseController(w).Flush()
	h.tell(Answered, requests)
}

// perform carries the calls out, notes their error codes, and returns the answer.
func (h *handler) perform(node Node, calls []rpcRequest, batch bool, faults []map[Kind]*injected, requests []Request, first int) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	answers := make([]rpcResponse, len(calls))
	for i, c := range calls {
		answers[i] = rpcResponse{Version: "2.0", ID: c.ID}
		if result, err := h.call(time.Now(), node.Lag, faults[i], c.Method, c.Params); err != nil {
			answers[i].Error = err
			requests[i].Code = err.Code
			h.requests[first+i].Code = err.Code
		} else {
			answers[i].Result = &result
		}
	}
	var answer any = answers
	if !batch {
		answer = answers[0]
	}
	body, err := json.Marshal(answer)
	if err != nil {
		panic(err) // all of it is our own
	}
	return append(body, '\n')
}

// spoil gives the answer of a fault.
func spoil(w http.ResponseWriter, r *http.Request, on connection, f *injected, id json.RawMessage, body []byte) {
	html := func(status int, title string) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, "<html>\n<head><title>%s</title></head>\n<body><h1>%[1]s</h1></body>\n</html>\n", title)
	}
	switch f.Kind {
	case Silence:
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case Reset:
		on.reset()
		panic(http.ErrAbortHandler)
	case Unavailable:
		http.Error(w, "Service Unavailable", http.StatusServiceUnavailable)
	case UnavailableJSON:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(rpcResponse{Version: "2.0", Error: &rpcError{Code: 503, Message: "Service unavailable"}, ID: id})
	case RateLimited:
		if f.Wait > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int((f.Wait+time.Second-1)/time.Second)))
		}
		html(http.StatusTooManyRequests, "429 Too Many Requests")
	case Nonsense:
		html(http.StatusOK, "Welcome")
	case Truncate:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body[:len(body)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

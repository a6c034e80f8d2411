// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// pageSize is the page size of every file, on every machine.
const pageSize = 4096

// Layout of a bbolt file, version 2. Integers are in the byte order of the machine.
const (
	pageHeader    = 16 // id u64, flags u16, count u16, overflow u32
	elementHeader = 16 // branch: pos u32, ksize u32, page u64; leaf: flags u32, pos u32, ksize u32, vsize u32
	bucketHeader  = 16 // root page u64, sequence u64
	metaSize      = 64 // magic, version, page size, flags u32; root, sequence, freelist, pages, transaction, checksum u64

	flagBranch = 0x01
	flagLeaf   = 0x02

	leafBucket = 0x01

	boltMagic   = 0xED0CDAED
	boltVersion = 2
)

var order = binary.NativeEndian

// meta is the newest valid meta page of a file.
type meta struct {
	root  uint64 // page of the root bucket
	pages uint64 // pages in use or free; everything above has never been written
	tx    uint64
	torn  bool // the other meta page is not valid: what it held, the last transaction perhaps, is gone
}

// readMeta reads the two meta pages. bbolt panics with its locks held if it finds none valid, so this is asked before each transaction.
// Of two pages one may be half written at this moment, never both.
func readMeta(f io.ReaderAt) (meta, error) {
	var buf [2 * pageSize]byte
	if n, err := f.ReadAt(buf[:], 0); errors.Is(err, io.EOF) {
		return meta{}, fmt.Errorf("%w: %d bytes are no database", ErrCorrupt, n)
	} else if err != nil {
		return meta{}, fmt.Errorf("read meta pages: %w", err)
	}
	first, ok0 := parseMeta(buf[:pageSize])
	second, ok1 := parseMeta(buf[pageSize:])
	switch {
	case !ok0 && !ok1:
		return meta{}, fmt.Errorf("%w: no valid meta page", ErrCorrupt)
	case ok0 && (!ok1 || first.tx > second.tx):
		first.torn = !ok1
		return first, nil
	default:
		second.torn = !ok0
		return second, nil
	}
}

func parseMeta(page []byte) (meta, bool) {
	b := page[pageHeader : pageHeader+metaSize]
	hash := fnv.New64a()
	hash.Write(b[:metaSize-8])
	if order.Uint32(b) != boltMagic || order.Uint32(b[4:]) != boltVersion || order.Uint32(b[8:]) != pageSize || order.Uint64(b[56:]) != hash.Sum64() {
		return meta{}, false
	}
	return meta{root: order.Uint64(b[16:]), pages: order.Uint64(b[40:]), tx: order.Uint64(b[48:])}, true
}

// verify walks every page that the newest meta page leads to and returns an error that is ErrCorrupt if bbolt could stumble over one.
//
// It exists because bbolt, when it opens a file, walks the tree in a goroutine of its own: a panic or memory fault there ends the process
// and nobody can recover it. Here a bad page is an error. The file must be locked.
func verify(f io.ReaderAt, size int64) (meta, error) {
	m, err := readMeta(f)
	if err != nil {
		return m, err
	}
	w := walker{file: f, pages: m.pages, size: uint64(size), seen: make([]bool, min(m.pages, uint64(size)/pageSize))}
	return m, w.tree(m.root, nil, nil)
}

type walker struct {
	file  io.ReaderAt
	pages uint64 // of the meta page
	size  uint64 // of the file, bytes
	seen  []bool
}

func (w *walker) bad(id uint64, format string, args ...any) error {
	return fmt.Errorf("%w: page %d: %s", ErrCorrupt, id, fmt.Sprintf(format, args...))
}

// tree checks the page and everything below it. Its keys must be in [low, high); nil is no limit.
func (w *walker) tree(id uint64, low, high []byte) error {
	page, err := w.read(id)
	if err != nil {
		return err
	}
	switch flags := order.Uint16(page[8:]); flags {
	case flagLeaf:
		return w.leaf(id, page, low, high)
	case flagBranch:
		return w.branch(id, page, low, high)
	default:
		return w.bad(id, "flags %#x", flags)
	}
}

// read returns the page with its overflow pages and marks them as seen: a page that two others lead to is an error, so no loop is endless.
func (w *walker) read(id uint64) ([]byte, error) {
	if id < 2 || id >= uint64(len(w.seen)) {
		return nil, w.bad(id, "outside the file")
	}
	var head [pageHeader]byte
	if err := w.readAt(head[:], id); err != nil {
		return nil, err
	}
	if got := order.Uint64(head[:]); got != id {
		return nil, w.bad(id, "says that it is page %d", got)
	}
	last := id + uint64(order.Uint32(head[12:]))
	if last >= uint64(len(w.seen)) {
		return nil, w.bad(id, "ends outside the file")
	}
	for i := id; i <= last; i++ {
		if w.seen[i] {
			return nil, w.bad(i, "is used twice")
		}
		w.seen[i] = true
	}
	page := make([]byte, (last-id+1)*pageSize)
	return page, w.readAt(page, id)
}

func (w *walker) readAt(b []byte, id uint64) error {
	if _, err := w.file.ReadAt(b, int64(id*pageSize)); errors.Is(err, io.EOF) {
		return w.bad(id, "is cut off")
	} else if err != nil {
		return fmt.Errorf("read page %d: %w", id, err)
	}
	return nil
}

func (w *walker) branch(id uint64, page, low, high []byte) error {
	count := int(order.Uint16(page[10:]))
	if count == 0 || pageHeader+count*elementHeader > len(page) {
		return w.bad(id, "%d branches", count)
	}
	keys := make([][]byte, count+1)
	for i := range count {
		at := pageHeader + i*elementHeader
		var ok bool
		if keys[i], _, ok = element(page, at, order.Uint32(page[at:]), order.Uint32(page[at+4:]), 0); !ok {
			return w.bad(id, "branch %d lies outside it", i)
		}
	}
	keys[count] = high
	for i := range count {
		if !ordered(keys[i], low, keys[i+1]) {
			return w.bad(id, "branch %d is out of order", i)
		}
		low = keys[i]
		if err := w.tree(order.Uint64(page[pageHeader+i*elementHeader+8:]), low, keys[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) leaf(id uint64, page, low, high []byte) error {
	count := int(order.Uint16(page[10:]))
	if pageHeader+count*elementHeader > len(page) {
		return w.bad(id, "%d keys", count)
	}
	for i := range count {
		at := pageHeader + i*elementHeader
		key, value, ok := element(page, at, order.Uint32(page[at+4:]), order.Uint32(page[at+8:]), order.Uint32(page[at+12:]))
		if !ok || len(key) == 0 {
			return w.bad(id, "key %d lies outside it", i)
		}
		if !ordered(key, low, high) || i > 0 && bytes.Equal(key, low) {
			return w.bad(id, "key %d is out of order", i)
		}
		low = key
		if order.Uint32(page[at:])&leafBucket == 0 {
			continue
		}
		if len(value) < bucketHeader {
			return w.bad(id, "bucket %q is cut off", key)
		}
		if root := order.Uint64(value); root != 0 {
			if err := w.tree(root, nil, nil); err != nil {
				return err
			}
		} else if err := w.inline(id, value[bucketHeader:]); err != nil {
			return err
		}
	}
	return nil
}

// inline checks a small bucket that lives inside its parent's page. It holds no buckets itself.
func (w *walker) inline(id uint64, page []byte) error {
	if len(page) < pageHeader || order.Uint64(page) != 0 || order.Uint16(page[8:]) != flagLeaf || order.Uint32(page[12:]) != 0 {
		return w.bad(id, "holds a bucket that is none")
	}
	for i := range int(order.Uint16(page[10:])) {
		if at := pageHeader + i*elementHeader; at+elementHeader <= len(page) && order.Uint32(page[at:])&leafBucket != 0 {
			return w.bad(id, "holds a bucket within a bucket")
		}
	}
	return w.leaf(id, page, nil, nil)
}

// element returns the key and the value that an element at offset `at` points to: pos is relative to the element.
func element(page []byte, at int, pos, ksize, vsize uint32) (key, value []byte, ok bool) {
	start := uint64(at) + uint64(pos)
	middle := start + uint64(ksize)
	end := middle + uint64(vsize)
	if end > uint64(len(page)) {
		return nil, nil, false
	}
	return page[start:middle], page[middle:end], true
}

func ordered(key, low, high []byte) bool {
	return bytes.Compare(key, low) >= 0 && (high == nil || bytes.Compare(key, high) < 0)
}

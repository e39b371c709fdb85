package livemap

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// tickEvery is how often what has changed is gathered for the pages.
	tickEvery = 300 * time.Millisecond
	// numbersEvery is at how many ticks round trips and throughput are, too; paths are at each.
	numbersEvery = 6
	// maxPages bounds the pages that are open.
	maxPages = 32
	// maxBehind bounds the messages that wait for a page. One that is slower is sent everything again.
	maxBehind = 8
)

var errTooManyPages = errors.New("too many pages are open; close one")

// hub hands the model's changes to the pages.
type hub struct {
	m     *model
	mu    sync.Mutex // taken before the model's
	pages map[chan []byte]bool
}

// enter adds a page. The first message has everything; the channel is closed for a page that does not keep up.
func (h *hub) enter() (chan []byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.pages) >= maxPages {
		return nil, errTooManyPages
	}
	page := make(chan []byte, maxBehind)
	page <- h.m.full(time.Now())
	h.pages[page] = true
	return page, nil
}

func (h *hub) leave(page chan []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pages, page)
}

// run sends changes until ctx ends.
func (h *hub) run(ctx context.Context) {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			h.send(i%numbersEvery == 0)
		}
	}
}

func (h *hub) send(numbers bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	news := h.m.changes(numbers, time.Now())
	if news == nil {
		return
	}
	for page := range h.pages {
		select {
		case page <- news:
		default:
			delete(h.pages, page)
			close(page)
		}
	}
}

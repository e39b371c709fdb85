package controller

import (
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/time/rate"

	"edgemesh/internal/seldom"
)

// pace names nodes that have objects change again and again: each change goes to every agent. The zero value limits nothing.
type pace struct {
	every time.Duration // a change, after so many beside each other
	most  int
	says  string // of a node that exceeds it

	of       map[string]*rate.Limiter // by node
	reported seldom.Log
}

// exceeded counts a change of a node's object, and reports whether it is one too many.
func (p *pace) exceeded(node string, log *slog.Logger) bool {
	if p.most == 0 {
		return false
	}
	l := p.of[node]
	if l == nil {
		if p.of == nil {
			p.of = map[string]*rate.Limiter{}
		}
		l = rate.NewLimiter(rate.Every(p.every), p.most)
		p.of[node] = l
	}
	if l.Allow() {
		return false
	}
	if p.reported.Due(node) {
		log.Warn(p.says, "node", node, "allowed", fmt.Sprintf("%d, then one each %v", p.most, p.every),
			"remedy", "find what writes with that node's identity; if the node was taken over, delete its Node and list it in the PodNetwork's banned")
	}
	return true
}

// forget drops a node that is gone.
func (p *pace) forget(node string) { delete(p.of, node) }

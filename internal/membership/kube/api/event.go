package api

import (
	"crypto/rand"
	"strings"
	"time"
)

// EventsPath is where Events of cluster-scoped objects live: in the namespace default.
const EventsPath = "/api/v1/namespaces/default/events"

// NodeEvent is an Event about a Node, as `kubectl describe node` shows it; kind is Normal or Warning.
func NodeEvent(node Meta, component, kind, reason, message string) map[string]any {
	now := time.Now().UTC().Truncate(time.Second)
	return map[string]any{
		"apiVersion": "v1", "kind": "Event", "type": kind, "reason": reason, "message": message,
		"metadata":       map[string]string{"namespace": "default", "name": node.Name + "." + strings.ToLower(rand.Text()[:16])},
		"involvedObject": map[string]string{"apiVersion": "v1", "kind": "Node", "name": node.Name, "uid": node.UID},
		"source":         map[string]string{"component": component, "host": node.Name},
		"firstTimestamp": now, "lastTimestamp": now, "count": 1,
	}
}

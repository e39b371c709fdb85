package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"edgemesh/test/fair"
)

// A relay that holds as many reservations as its limits allow refuses the next node, which tries again, and has its
// turn when another one has left.
func TestFullRelay(t *testing.T) {
	for _, limit := range []string{"maxReservations", "maxReservationsPerIP"} {
		t.Run(limit, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "join-secret")
			secrets := secretFile(t, path, "known")
			r := runRelayWith(t, dir, fmt.Sprintf("joinSecretFile: %s\nlimits: {%s: 1}\n", path, limit))
			first := joiner(t, r.info, secrets)
			fair.Eventually(t, deadline, "the first is served", reserved(first))
			second := joiner(t, r.info, secrets)
			fair.Eventually(t, deadline, "the second reads that the relay is full", func() error {
				if st := second.Status().Relays[0]; st.Reserved || !strings.Contains(st.Error, "the relay is full") {
					return fmt.Errorf("%+v", st)
				}
				return nil
			})
			if _, text := r.get("/metrics"); !strings.Contains(text, "edgemesh_relay_reservations 1\n") {
				t.Error("not one reservation")
			}
			if err := reserved(first)(); err != nil {
				t.Errorf("the first one lost its place: %v", err)
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			fair.Eventually(t, deadline, "the second has its turn", reserved(second))
		})
	}
}

package client

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"edgemesh/internal/wording/wordingtest"
)

// What an API or a cache says when it refuses reaches status, doctor and the log.
func TestRefusalOfALiar(t *testing.T) {
	status, _ := json.Marshal(map[string]any{"kind": "Status", "code": 403, "reason": "Forbidden", "message": wordingtest.Hostile()[:30<<10]})
	for _, body := range []string{string(status), wordingtest.Hostile()} {
		err := statusError("GET", "/x", &http.Response{StatusCode: 403, Body: io.NopCloser(strings.NewReader(body))})
		if bad := wordingtest.Bad(err.Error(), 2<<10); bad != "" {
			t.Errorf("%d bytes: %s", len(err.Error()), bad)
		}
	}
}

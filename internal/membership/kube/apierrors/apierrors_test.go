package apierrors

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"

	kube "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Every answer means what it means to apimachinery, whether it is a Status, a Status of a newer reason, or no Status.
func TestLikeApimachinery(t *testing.T) {
	asks := map[string][2]func(error) bool{
		"not found": {IsNotFound, kube.IsNotFound}, "already exists": {IsAlreadyExists, kube.IsAlreadyExists},
		"conflict": {IsConflict, kube.IsConflict}, "forbidden": {IsForbidden, kube.IsForbidden}, "invalid": {IsInvalid, kube.IsInvalid},
		"gone": {IsGone, kube.IsGone}, "expired": {IsResourceExpired, kube.IsResourceExpired}, "internal": {IsInternalError, kube.IsInternalError},
	}
	compare := func(what string, ours, theirs error) {
		t.Helper()
		for name, is := range asks {
			if got, want := is[0](fmt.Errorf("wrapped: %w", ours)), is[1](theirs); got != want {
				t.Errorf("%s: %s is %v, want %v", what, name, got, want)
			}
		}
		if got, want := string(ReasonForError(ours)), string(kube.ReasonForError(theirs)); got != want {
			t.Errorf("%s: reason %q, want %q", what, got, want)
		}
		if ours.Error() != theirs.Error() {
			t.Errorf("%s: %q, want %q", what, ours, theirs)
		}
	}
	reasons := []string{"", "NotFound", "AlreadyExists", "Conflict", "Forbidden", "Invalid", "Gone", "Expired", "InternalError", "Timeout", "New"}
	for code := http.StatusBadRequest; code < 600; code++ {
		for _, method := range []string{"GET", "POST"} {
			theirs := kube.NewGenericServerResponse(code, method, schema.GroupResource{}, "", "some text", 3, true)
			compare(fmt.Sprint(method, " ", code), FromAnswer(code, method, "some text", 3), theirs)
		}
		for _, reason := range reasons {
			text := fmt.Sprintf(`{"kind":"Status","code":%d,"reason":%q,"message":"m","details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}`, code, reason)
			var ours Status
			var theirs metav1.Status
			if err := json.Unmarshal([]byte(text), &ours); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(text), &theirs); err != nil {
				t.Fatal(err)
			}
			compare(text, &StatusError{ours}, &kube.StatusError{ErrStatus: theirs})
			if !HasStatusCause(&StatusError{ours}, VersionTooLarge) || HasStatusCause(&StatusError{ours}, "x") {
				t.Errorf("%s: causes", text)
			}
		}
	}
	compare("no refusal", io.EOF, io.EOF)
}

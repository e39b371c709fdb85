// Package apierrors is what a Kubernetes API server says when it refuses a request: the Status object of its API
// conventions, as an error. The names are those of apimachinery's package, which would bring 2 MB of encoders along.
package apierrors

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
)

// Reason is a Status's word for why a request was refused.
type Reason string

// The reasons of the API conventions.
const (
	Unknown               Reason = ""
	Unauthorized          Reason = "Unauthorized"
	Forbidden             Reason = "Forbidden"
	NotFound              Reason = "NotFound"
	AlreadyExists         Reason = "AlreadyExists"
	Conflict              Reason = "Conflict"
	Gone                  Reason = "Gone"
	Invalid               Reason = "Invalid"
	ServerTimeout         Reason = "ServerTimeout"
	StoreReadError        Reason = "StorageReadError"
	Timeout               Reason = "Timeout"
	TooManyRequests       Reason = "TooManyRequests"
	BadRequest            Reason = "BadRequest"
	MethodNotAllowed      Reason = "MethodNotAllowed"
	NotAcceptable         Reason = "NotAcceptable"
	RequestEntityTooLarge Reason = "RequestEntityTooLarge"
	UnsupportedMediaType  Reason = "UnsupportedMediaType"
	InternalError         Reason = "InternalError"
	Expired               Reason = "Expired"
	ServiceUnavailable    Reason = "ServiceUnavailable"
)

const (
	// VersionTooLarge is the cause of a refusal by a server that has not yet reached the version asked for.
	VersionTooLarge = "ResourceVersionTooLarge"
	// unexpected is the cause with the text of an answer that is no Status.
	unexpected = "UnexpectedServerResponse"
	// Failure is the status of every refusal.
	Failure = "Failure"
)

// Status is an API server's answer when it refuses.
type Status struct {
	Kind       string   `json:"kind,omitempty"`
	APIVersion string   `json:"apiVersion,omitempty"`
	Status     string   `json:"status,omitempty"` // Failure
	Message    string   `json:"message,omitempty"`
	Reason     Reason   `json:"reason,omitempty"`
	Details    *Details `json:"details,omitempty"`
	Code       int      `json:"code,omitempty"` // of HTTP
}

// Details are more about a refusal.
type Details struct {
	Name              string  `json:"name,omitempty"`
	Group             string  `json:"group,omitempty"`
	Kind              string  `json:"kind,omitempty"`
	Causes            []Cause `json:"causes,omitempty"`
	RetryAfterSeconds int     `json:"retryAfterSeconds,omitempty"`
}

// Cause is one of a refusal's.
type Cause struct {
	Type    string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// StatusError is a refusal.
type StatusError struct{ ErrStatus Status }

// Error is the server's message.
func (e *StatusError) Error() string { return e.ErrStatus.Message }

// StatusOf is the refusal in err.
func StatusOf(err error) (Status, bool) {
	var s *StatusError
	if errors.As(err, &s) {
		return s.ErrStatus, true
	}
	return Status{}, false
}

// answers are what a status code alone means.
var answers = map[int]struct {
	reason  Reason
	message string // "": the answer's text
}{
	http.StatusBadRequest:           {BadRequest, "the server rejected our request for an unknown reason"},
	http.StatusUnauthorized:         {Unauthorized, "the server has asked for the client to provide credentials"},
	http.StatusForbidden:            {Forbidden, ""},
	http.StatusNotFound:             {NotFound, "the server could not find the requested resource"},
	http.StatusMethodNotAllowed:     {MethodNotAllowed, "the server does not allow this method on the requested resource"},
	http.StatusNotAcceptable:        {NotAcceptable, ""},
	http.StatusConflict:             {Conflict, "the server reported a conflict"},
	http.StatusUnsupportedMediaType: {UnsupportedMediaType, ""},
	http.StatusUnprocessableEntity:  {Invalid, "the server rejected our request due to an error in our request"},
	http.StatusTooManyRequests:      {TooManyRequests, "the server has received too many requests and has asked us to try again later"},
	http.StatusServiceUnavailable:   {ServiceUnavailable, "the server is currently unable to handle the request"},
	http.StatusGatewayTimeout:       {Timeout, "the server was unable to return a response in the time allotted, but may still be processing the request"},
}

// FromAnswer is the refusal by an answer that is no Status: a proxy's, or a cache's. retryAfter is in seconds.
func FromAnswer(code int, method, text string, retryAfter int) *StatusError {
	a, known := answers[code]
	switch {
	case code >= 500 && !known:
		a.reason = InternalError
		a.message = fmt.Sprintf("an error on the server (%q) has prevented the request from succeeding", text)
	case !known:
		a.message = fmt.Sprintf("the server responded with the status code %d but did not return more information", code)
	case code == http.StatusConflict && method == http.MethodPost:
		a.reason = AlreadyExists
	case a.message == "":
		a.message = text
	}
	if a.message == "" {
		a.message = "unknown"
	}
	d := &Details{RetryAfterSeconds: retryAfter}
	if text != "" {
		d.Causes = []Cause{{unexpected, text}}
	}
	return &StatusError{Status{Status: Failure, Code: code, Reason: a.reason, Message: a.message, Details: d}}
}

// New is a refusal with a reason.
func New(code int, reason Reason, message string) *StatusError {
	return &StatusError{Status{Status: Failure, Code: code, Reason: reason, Message: message}}
}

// ReasonForError is why err was refused, Unknown if it is no refusal.
func ReasonForError(err error) Reason {
	s, _ := StatusOf(err)
	return s.Reason
}

// is says that err was refused for a reason, or with its status code and a reason that the API does not have.
func is(err error, reason Reason, code int) bool {
	s, ok := StatusOf(err)
	return ok && (s.Reason == reason || s.Code == code && !known(s.Reason))
}

func known(r Reason) bool {
	switch r {
	case Unauthorized, Forbidden, NotFound, AlreadyExists, Conflict, Gone, Invalid, ServerTimeout, StoreReadError, Timeout, TooManyRequests,
		BadRequest, MethodNotAllowed, NotAcceptable, RequestEntityTooLarge, UnsupportedMediaType, InternalError, Expired, ServiceUnavailable:
		return true
	}
	return false
}

// IsNotFound says that there is no such object, or no such kind.
func IsNotFound(err error) bool { return is(err, NotFound, http.StatusNotFound) }

// IsAlreadyExists says that the object to be made is there.
func IsAlreadyExists(err error) bool { return ReasonForError(err) == AlreadyExists }

// IsConflict says that the object was changed meanwhile.
func IsConflict(err error) bool { return is(err, Conflict, http.StatusConflict) }

// IsForbidden says that the right is missing.
func IsForbidden(err error) bool { return is(err, Forbidden, http.StatusForbidden) }

// IsInvalid says that the object was refused.
func IsInvalid(err error) bool { return is(err, Invalid, http.StatusUnprocessableEntity) }

// IsGone says that the version asked for is no longer available, and for good.
func IsGone(err error) bool { return is(err, Gone, http.StatusGone) }

// IsResourceExpired says that the server no longer has the history since the version asked for.
func IsResourceExpired(err error) bool { return ReasonForError(err) == Expired }

// IsInternalError says that the server failed.
func IsInternalError(err error) bool {
	return is(err, InternalError, http.StatusInternalServerError)
}

// HasStatusCause says that a cause is among those of a refusal.
func HasStatusCause(err error, cause string) bool {
	s, _ := StatusOf(err)
	return s.Details != nil && slices.ContainsFunc(s.Details.Causes, func(c Cause) bool { return c.Type == cause })
}

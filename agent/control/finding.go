package control

import "fmt"

// Okayf is a check that found nothing wrong.
func Okayf(check, detail string, args ...any) Finding {
	return Finding{Check: check, Severity: OK, Detail: fmt.Sprintf(detail, args...)}
}

// Warningf is a check that found a problem that breaks nothing.
func Warningf(check, remedy, detail string, args ...any) Finding {
	return Finding{Check: check, Severity: Warning, Detail: fmt.Sprintf(detail, args...), Remedy: remedy}
}

// Brokenf is a check that found a problem that breaks traffic.
func Brokenf(check, remedy, detail string, args ...any) Finding {
	return Finding{Check: check, Severity: Broken, Detail: fmt.Sprintf(detail, args...), Remedy: remedy}
}

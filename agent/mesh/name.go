package mesh

import (
	"errors"
	"fmt"
)

const maxNodeName = 253 // bytes, RFC 1123 section 2.1 as Kubernetes reads it

// CheckNodeName accepts what Kubernetes accepts as a node name: a DNS-1123
// subdomain, labels of lower-case letters, digits and '-' joined by dots.
func CheckNodeName(name string) error {
	if name == "" {
		return errors.New("empty")
	}
	if len(name) > maxNodeName {
		return fmt.Errorf("%d bytes long, at most %d are allowed", len(name), maxNodeName)
	}
	alnum := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
	for i := range len(name) {
		c := name[i]
		inside := i > 0 && i < len(name)-1
		switch {
		case alnum(c):
		case c == '-' && inside && name[i-1] != '.' && name[i+1] != '.':
		case c == '.' && inside && name[i-1] != '.' && name[i-1] != '-':
		default:
			return fmt.Errorf("%q is not a node name: lower-case letters, digits, '-' and '.', "+
				"each label beginning and ending with a letter or digit (DNS-1123 subdomain)", name)
		}
	}
	return nil
}

package iptables

import "errors"

// ErrNoIPTables means that no usable iptables was found.
var ErrNoIPTables = errors.New("iptables is missing (apt install iptables)")

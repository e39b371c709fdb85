package main

import "errors"

// errListen means that an address cannot be listened on.
var errListen = errors.New("cannot listen")

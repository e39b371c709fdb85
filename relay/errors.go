package main

import "errors"

// errListen means that an address to listen on cannot be had.
var errListen = errors.New("cannot listen")

// Command critest is what critest's images have, under several names: top waits, cat and hostname are the usual ones, and web answers
// each request on port 80.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

func main() {
	if err := run(filepath.Base(os.Args[0])); err != nil {
		log.Fatal(err)
	}
}

func run(name string) error {
	switch name {
	case "cat":
		b, err := os.ReadFile(os.Args[1])
		fmt.Print(string(b))
		return err
	case "hostname":
		h, err := os.Hostname()
		fmt.Println(h)
		return err
	case "web":
		return http.ListenAndServe(":80", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	}
	time.Sleep(time.Hour)
	return nil
}

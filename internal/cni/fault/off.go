//go:build !faultpoints

// Package fault lets a test build of the plugin die between any two steps.
// In every other build Point is empty and compiled away.
package fault

// Point marks the place after one step with an outside effect.
func Point(string) {}

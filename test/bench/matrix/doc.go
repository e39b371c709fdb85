// Package matrix chooses links and loads so that every two of their properties meet in some cell, keeps what was measured
// in each, and shows it. It measures nothing itself.
package matrix

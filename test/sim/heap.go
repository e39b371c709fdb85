package sim

import "runtime"

// Held is how many bytes live on the heap.
func Held() int64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools kept the first time
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

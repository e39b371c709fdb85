// Package ipam gives addresses to attachments of pods and gets them back, so that no address is given twice or leaked,
// whatever is killed and whenever the power fails.
//
//	pool.go      which address a request gets; decides, and changes nothing
//	store.go     the locked directory of records: Open, Allocate
//	release.go   addresses are freed, and kept for their pods' names
//	maintain.go  GC, Reconcile, Forget and Import
//	load.go      records and living attachments are read and compared
//	write.go     records are replaced and removed, in steps that a power cut may interrupt
//	record.go    a record, and the file it is
//	fs.go        what the store needs of a directory
package ipam

// Package sealed protects single packets between two nodes that share a TLS 1.3
// session, without order and without retransmission. It does no I/O.
//
//	seal.go    sealing and opening packets
//	key.go     the key schedule
//	errors.go  what callers can distinguish
//
// Nothing of it is new. Keys come from the session's exporter (RFC 8446 section
// 7.5), as DTLS-SRTP takes them (RFC 5764 section 4.2); they become key and IV as
// TLS 1.3's traffic secrets do (section 7.3), are updated as those are (section
// 7.2), the nonce is made as there (section 5.3), and the cipher is the session's
// own. The packet is that of WireGuard's data message: the receiver's index, a counter,
// the sealed payload. Replays are for who knows the packets' numbers to refuse.
//
//	 0        4                12
//	+--------+----------------+------------------------+--------------+
//	| index  | counter        | ciphertext, any length | tag (16)     |
//	+--------+----------------+------------------------+--------------+
//
// Integers are big-endian; index and counter are the additional data. The two
// top bits of the first byte are zero, which no QUIC packet has (RFC 9443), so that
// both share a port. Counters start at 0 and never repeat. Every 2^22 packets have
// a key of their own, half of what QUIC allows to AES-GCM (RFC 9001 section 6.6);
// the counter says which.
package sealed

//go:build ignore

// The filter at the host end of a pod's veth pair; antispoof.go says what it passes. Compiled by `go generate`.
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char __license[] SEC("license") = "Apache-2.0";

// The pod's own, written before the program is loaded, in the byte order of packets.
#define MAX_ADDRS 4
const volatile __u16 mac[3];
const volatile __u32 own4[MAX_ADDRS];
const volatile __u64 own6[MAX_ADDRS][2];
const volatile __u32 count4, count6;

// A pass leaves the frame to the next program or filter; without any it is accepted.
#define PASS TC_ACT_UNSPEC
#define DROP TC_ACT_SHOT

enum { HOP_BY_HOP = 0, ROUTING = 43, FRAGMENT = 44, AH = 51, ICMPV6 = 58, DEST_OPTS = 60 };
enum { MLD_QUERY = 130, MLD_REPORT = 131, MLD_DONE = 132, ROUTER_SOL = 133, ROUTER_ADV = 134, NEIGHBOUR_SOL = 135, NEIGHBOUR_ADV = 136, REDIRECT = 137, MLDV2_REPORT = 143 };
#define MAX_EXT_HEADERS 6

// Copies a header; false where the frame ends before.
#define LOAD(skb, at, to) (bpf_skb_load_bytes(skb, at, &(to), sizeof(to)) == 0)

static __always_inline bool is_mac(const __u16 *a)
{
	return a[0] == mac[0] && a[1] == mac[1] && a[2] == mac[2];
}

static __always_inline bool is_own4(__u32 addr)
{
	for (int i = 0; i < MAX_ADDRS; i++)
		if (i < count4 && own4[i] == addr)
			return true;
	return false;
}

static __always_inline bool is_own6(const __u64 *addr)
{
	for (int i = 0; i < MAX_ADDRS; i++)
		if (i < count6 && own6[i][0] == addr[0] && own6[i][1] == addr[1])
			return true;
	return false;
}

// RFC 826.
static __always_inline int arp(struct __sk_buff *skb)
{
	struct {
		__be16 hardware, protocol;
		__u8 hardware_len, protocol_len;
		__be16 operation;
		__u16 sender_mac[3];
	} h;
	__u32 sender;

	if (!LOAD(skb, ETH_HLEN, h) || h.hardware != bpf_htons(1) || h.protocol != bpf_htons(ETH_P_IP) ||
	    h.hardware_len != 6 || h.protocol_len != 4 || !is_mac(h.sender_mac) ||
	    !LOAD(skb, ETH_HLEN + 14, sender)) // aligned
		return DROP;
	return sender == 0 || is_own4(sender) ? PASS : DROP;
}

static __always_inline int ipv4(struct __sk_buff *skb)
{
	struct {
		__u8 start[12];
		__u32 source, destination;
	} h;

	return LOAD(skb, ETH_HLEN, h) && is_own4(h.source) ? PASS : DROP;
}

struct ipv6_header {
	__u8 start[6], next, hop_limit;
	__u64 source[2], destination[2];
};

// RFC 4291, section 2.7.1: the group of target on which its neighbours are asked for it, ff02::1:ffXX:XXXX.
static __always_inline bool is_group_of(const __u64 *group, const __u64 *target)
{
	const __be64 low24 = bpf_cpu_to_be64(0xffffff);

	return group[0] == bpf_cpu_to_be64(0xff02000000000000) && group[1] == (bpf_cpu_to_be64(0x1ff000000) | (target[1] & low24));
}

// What policies let pass on the bridge, since neighbours need it, has to be that: other payload to other pods has no use.
static __always_inline int icmpv6(struct __sk_buff *skb, __u32 at, const struct ipv6_header *ip, bool unspecified, bool fragment)
{
	__u8 start[4]; // type, code
	struct {
		__u8 start[8];
		__u64 target[2]; // RFC 4861, sections 4.3, 4.4
	} neighbour;

	if (!LOAD(skb, at, start))
		return DROP;
	switch (start[0]) {
	case ROUTER_ADV:
	case REDIRECT:
		return DROP;
	case ROUTER_SOL:
		return PASS;
	case MLD_QUERY:
	case MLD_REPORT:
	case MLD_DONE:
	case MLDV2_REPORT: // RFC 2710, section 3; RFC 3810, section 5
		return !fragment && ip->hop_limit == 1 && ((const __u8 *)ip->destination)[0] == 0xff &&
			(unspecified || (ip->source[0] & bpf_cpu_to_be64(0xffc0000000000000)) == bpf_cpu_to_be64(0xfe80000000000000)) ? PASS : DROP;
	case NEIGHBOUR_SOL:
	case NEIGHBOUR_ADV: // RFC 4861, section 7.1; fragments: RFC 6980
		if (fragment || ip->hop_limit != 255 || start[1] != 0 || !LOAD(skb, at, neighbour))
			return DROP;
		if (start[0] == NEIGHBOUR_ADV)
			return !unspecified && is_own6(neighbour.target) ? PASS : DROP;
		return (ip->destination[0] == neighbour.target[0] && ip->destination[1] == neighbour.target[1]) ||
			is_group_of(ip->destination, neighbour.target) ? PASS : DROP;
	}
	return unspecified ? DROP : PASS;
}

// The source may be :: for some ICMPv6 messages, which may stand behind extension headers.
static __always_inline int ipv6(struct __sk_buff *skb)
{
	struct ipv6_header h;
	__u32 at = ETH_HLEN + sizeof(h);
	bool unspecified, fragment = false;
	__u8 next;

	if (!LOAD(skb, ETH_HLEN, h))
		return DROP;
	unspecified = h.source[0] == 0 && h.source[1] == 0;
	if (!unspecified && !is_own6(h.source))
		return DROP;
	next = h.next;
	for (int i = 0; i < MAX_EXT_HEADERS; i++) {
		__u8 e[4];

		switch (next) {
		case ICMPV6:
			goto icmp;
		case ROUTING:
			if (!LOAD(skb, at, e) || e[3] != 0) // segments left
				return DROP;
			// fall through
		case HOP_BY_HOP:
		case DEST_OPTS: {
			__u8 option[2];

			if (!LOAD(skb, at, option))
				return DROP;
			next = option[0];
			at += option[1] * 8 + 8;
			break;
		}
		case FRAGMENT:
			if (!LOAD(skb, at, e))
				return DROP;
			next = e[0]; // what begins the fragmented part, in each fragment
			if (next == HOP_BY_HOP || next == ROUTING || next == FRAGMENT || next == AH || next == DEST_OPTS)
				return DROP;
			fragment = true;
			// The first fragment contains the upper-layer header, later ones do not; receivers ignore fragmented
			// neighbour discovery (RFC 6980).
			if (((e[2] << 8 | e[3]) & 0xfff8) != 0)
				return unspecified ? DROP : PASS;
			at += 8;
			break;
		default:
			return unspecified ? DROP : PASS;
		}
	}
	return DROP; // a longer chain has no use
icmp:
	return icmpv6(skb, at, &h, unspecified, fragment);
}

SEC("tc")
int edgemesh_spoof(struct __sk_buff *skb)
{
	struct {
		__u16 destination[3], source[3];
		__be16 type;
	} eth;

	if (skb->vlan_present || !LOAD(skb, 0, eth) || !is_mac(eth.source))
		return DROP;
	switch (eth.type) {
	case bpf_htons(ETH_P_IP):
		return ipv4(skb);
	case bpf_htons(ETH_P_IPV6):
		return ipv6(skb);
	case bpf_htons(ETH_P_ARP):
		return arp(skb);
	}
	return DROP;
}

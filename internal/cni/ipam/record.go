package ipam

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unicode/utf8"
)

// Owner says for whom an address is: an attachment, and the pod behind it
// where the runtime named one.
type Owner struct {
	Network     string `json:"network"` // name of the network configuration
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	Namespace   string `json:"namespace"`
	Pod         string `json:"pod"`
	UID         string `json:"uid,omitempty"` // of the pod
}

// Named reports whether o is a pod, whose address can be kept for its name.
func (o Owner) Named() bool { return o.Namespace != "" && o.Pod != "" }

// sameAttachment reports whether o and p are one attachment.
func (o Owner) sameAttachment(p Owner) bool {
	return o.ContainerID == p.ContainerID && o.IfName == p.IfName && o.Network == p.Network
}

// Record is the state of one address. The zero Released means in use.
type Record struct {
	IP netip.Addr `json:"ip"`
	Owner
	Allocated time.Time `json:"allocated"`
	Released  time.Time `json:"released,omitzero"`
	// Boot is the ID of the boot during which the record was written: what was in use
	// before that boot is gone. Empty in another plugin's records.
	Boot string `json:"boot,omitempty"`
	// Ranged: the plugin that wrote it leads a pod to the cluster's ranges over this interface where another one has the default route.
	Ranged bool `json:"ranged,omitempty"`

	file     string    // name in the store, if it was read from there
	modified time.Time // when the file was last written
	// torn means that the content is unusable or lost: IP and perhaps the names are known
	// from the file name, the attachment from a living interface if there is one.
	torn bool
	// stuck means that the file cannot even be read: it may be a directory. It may not be
	// replaceable either, so no pod gets its address.
	stuck bool
}

// InUse reports whether a container holds the address.
func (r Record) InUse() bool { return r.Released.IsZero() }

// Torn reports whether the record's content was unusable, so that only its file name is
// known.
func (r Record) Torn() bool { return r.torn }

// state says for whom the record is.
func (r Record) state() string {
	if r.InUse() {
		return "in use by container " + r.ContainerID
	}
	return fmt.Sprintf("kept for %s/%s", r.Namespace, r.Pod)
}

// touched is the last time the record's pod is known to have lived.
func (r Record) touched() time.Time {
	if r.InUse() {
		return r.Allocated
	}
	return r.Released
}

// maxFileName is NAME_MAX of every usual Linux file system, in bytes.
const maxFileName = 255

// sumBytes is how much of a SHA-256 is at the end of a shortened name.
const sumBytes = 8

// FileName is the name of r's file: IP_NAMESPACE_POD, or IP__CONTAINERID if the pod has
// no name. The last part of a name that is too long is shortened and ends in "~" and 16
// hex digits of the SHA-256 of NAMESPACE/POD.
func (r Record) FileName() string {
	ns, pod := r.Namespace, r.Pod
	if !r.Named() {
		ns, pod = "", r.ContainerID
	}
	name := r.IP.String() + "_" + ns + "_" + pod
	if len(name) <= maxFileName {
		return name
	}
	sum := sha256.Sum256([]byte(ns + "/" + pod))
	tail := "~" + hex.EncodeToString(sum[:sumBytes])
	name = name[:maxFileName-len(tail)]
	for !utf8.ValidString(name) { // never cut a character in two
		name = name[:len(name)-1]
	}
	return name + tail
}

// Encode is the content of r's file: one JSON object and a newline.
func (r Record) Encode() []byte {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		panic("ipam: a record always encodes: " + err.Error()) // times and strings only
	}
	return append(b, '\n')
}

// Decode reads a record from its file name and content. Besides our own
// format it reads host-local's (name IP, content CONTAINERID and IFNAME on
// two lines) and OpenYurt's (the same content, name IP_NAMESPACE_POD).
//
// A name that does not start with an address is ErrNotRecord. Unusable content is not an
// error: the record is then Torn, released, and has the names from the file name.
func Decode(file string, content []byte) (Record, error) {
	host, _, _ := strings.Cut(file, "_")
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.String() != host || ip.Zone() != "" || ip.Is4In6() {
		return Record{}, fmt.Errorf("%q: %w", file, ErrNotRecord)
	}
	if bytes.HasPrefix(bytes.TrimSpace(content), []byte("{")) {
		r := Record{}
		if json.Unmarshal(content, &r) == nil && r.IP == ip && r.ContainerID != "" && r.FileName() == file &&
			plausible(r.Allocated) && plausible(r.Released) {
			r.file = file
			return r, nil
		}
		return tornRecord(ip, file), nil
	}
	lines := strings.FieldsFunc(string(content), func(c rune) bool { return c == '\r' || c == '\n' })
	if len(lines) == 0 || len(lines) > 2 || !plainID(lines[0]) || !plainID(lines[len(lines)-1]) {
		return tornRecord(ip, file), nil
	}
	r := Record{IP: ip, file: file}
	r.ContainerID, r.IfName = lines[0], "eth0"
	if len(lines) == 2 {
		r.IfName = lines[1]
	}
	r.Namespace, r.Pod = podNames(file)
	return r, nil
}

// readRecord is Decode for a file last written at modified. The pod of a torn record
// cannot have lived later than that.
func readRecord(file string, content []byte, modified time.Time) (Record, error) {
	r, err := Decode(file, content)
	if plausible(modified) {
		r.modified = modified.UTC()
	}
	if r.torn && !r.modified.IsZero() {
		r.Released = r.modified
	}
	return r, err
}

// plausible reports whether t, and times after it, can be encoded: JSON has the years 0
// to 9999 (RFC 3339).
func plausible(t time.Time) bool { return t.Year() >= 0 && t.Year() < 9999 }

// tornRecord is what a file name alone says.
func tornRecord(ip netip.Addr, file string) Record {
	r := Record{IP: ip, file: file, torn: true, Released: time.Unix(0, 0).UTC()}
	r.Namespace, r.Pod = podNames(file)
	return r
}

// podNames reads the names from a file name IP_NAMESPACE_POD. It returns none for any
// other name, and for a shortened one, which only its pod can recognise.
func podNames(file string) (namespace, pod string) {
	_, rest, _ := strings.Cut(file, "_")
	namespace, pod, ok := strings.Cut(rest, "_")
	if !ok || namespace == "" || pod == "" || !utf8.ValidString(rest) || cutName(file) {
		return "", ""
	}
	return namespace, pod
}

// cutName reports whether FileName may have shortened a file's name. A complete one that
// looks the same counts as shortened.
func cutName(file string) bool {
	i := len(file) - len("~") - 2*sumBytes
	return len(file) > maxFileName-utf8.UTFMax && len(file) <= maxFileName &&
		file[i] == '~' && strings.Trim(file[i+1:], "0123456789abcdef") == ""
}

// plainID reports whether s looks like a container ID or an interface name.
func plainID(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c > '~' || c == '/'
	})
}

// foreign reports whether another plugin wrote the record. Its container cannot be looked
// up; adopt records when it was first seen.
func (r Record) foreign() bool { return !r.torn && r.Network == "" && r.Boot == "" }

// repaired is a torn record completed with what is known.
func (r Record) repaired(boot string) Record {
	r.torn, r.ContainerID, r.IfName, r.Boot = false, "unknown", "eth0", boot
	return r
}

// For reports whether the record is for the same interface of the same pod as o. The
// network's name does not matter, because an operator may change it. A torn record is
// recognised by the file name that the pod would have.
func (r Record) For(o Owner) bool {
	if !o.Named() {
		return false
	}
	if r.torn {
		probe := Record{IP: r.IP, Owner: o}
		return probe.FileName() == r.file
	}
	return r.Namespace == o.Namespace && r.Pod == o.Pod && r.IfName == o.IfName
}

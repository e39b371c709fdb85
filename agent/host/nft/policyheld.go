package nft

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/internal/cni/closing"
)

// heldTable has the same rules as the first table, and belongs to this process (NFT_TABLE_F_OWNER): the kernel lets no other program change
// it, and leaves it out of `nft flush ruleset`. It ends with the process, and the plugin cannot close pods in it. So it is only the second line:
// its hook comes after the first one's, and drops nothing that the first did not drop before while that is whole.
var heldTable = &nftables.Table{Name: closing.Table + "-held", Family: nftables.TableFamilyINet} //nolint:gochecknoglobals // a constant

// held is that table.
type held struct {
	log     *slog.Logger
	c       *nftables.Conn // the owner; nil: there is no table
	have    policyState    // as written
	said    string         // the last error that was logged
	again   time.Time      // not before
	without bool           // the kernel knows no owners (Linux before 5.12)
}

// heldAgain is the pause after a failure: each attempt changes the kernel's tables, which wakes the next pass.
const heldAgain = 30 * time.Second

var errNoOwners = errors.New("no tables with owners")

// missing reports whether hold should make the table.
func (h *held) missing() bool { return h.c == nil && !h.without && !time.Now().Before(h.again) }

// hold makes the rules those of the table. What the kernel refuses is logged: the first line stands.
func (h *held) hold(want policyRules) {
	if h.c == nil && !h.missing() {
		return
	}
	err := h.fill(want)
	if err == nil {
		h.said = ""
		return
	}
	h.drop()
	h.again = time.Now().Add(heldAgain)
	if h.without = errors.Is(err, errNoOwners); h.without {
		h.log.Info("the kernel knows no nftables tables that belong to a program (Linux 5.12 does): where another program flushes all tables, pods with NetworkPolicies are open for some 0.2 s")
	} else if h.said != err.Error() {
		h.said = err.Error()
		h.log.Warn("the second table of NetworkPolicies is missing, which holds while another program flushes all tables; trying again", "err", err, "remedy", "nft delete table inet "+heldTable.Name)
	}
}

func (h *held) fill(want policyRules) error {
	if h.c == nil {
		c, err := makeOwned(heldTable.Name)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
			err = errNoOwners
		}
		if err != nil {
			return fmt.Errorf("nftables table %s: %w", heldTable.Name, err)
		}
		h.c, h.have = c, policyState{behind: true}
	}
	_, err := h.have.fill(h.c, heldTable, want)
	if err == nil {
		err = h.c.Flush()
	}
	if err != nil {
		return fmt.Errorf("nftables table %s: %w", heldTable.Name, err)
	}
	h.have = policyState{exists: true, framed: true, behind: true, sets: map[string]elementSet{}, maps: want.maps, chains: map[string]int{}}
	for name, s := range want.sets {
		h.have.sets[name] = s.elementSet
	}
	for name, rules := range want.chains {
		h.have.chains[name] = len(rules)
	}
	return nil
}

// drop deletes the table: the kernel does so when its owner's socket is closed.
func (h *held) drop() {
	if h.c != nil {
		_ = h.c.CloseLasting()
		h.c = nil
	}
}

// NFT_TABLE_F_OWNER (linux/netfilter/nf_tables.h).
const tableOwner = 2

// makeOwned makes an inet table that belongs to the connection returned, in place of one without owner, as a restored copy of all tables may have
// left it. The library sends no flags of tables, so the request is made here.
func makeOwned(name string) (*nftables.Conn, error) {
	var socket *mdnetlink.Conn
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(s *mdnetlink.Conn) error {
		socket = s
		return bigBuffers(s)
	}))
	if err != nil {
		return nil, err
	}
	named := mdnetlink.Attribute{Type: unix.NFTA_TABLE_NAME, Data: append([]byte(name), 0)}
	plain, err := mdnetlink.MarshalAttributes([]mdnetlink.Attribute{named})
	owned, e := mdnetlink.MarshalAttributes([]mdnetlink.Attribute{named, {Type: unix.NFTA_TABLE_FLAGS, Data: binaryutil.BigEndian.PutUint32(tableOwner)}})
	if err = errors.Join(err, e); err == nil {
		message := func(typ mdnetlink.HeaderType, family byte, resource uint16, flags mdnetlink.HeaderFlags, data []byte) mdnetlink.Message {
			head := append([]byte{family, unix.NFNETLINK_V0}, binaryutil.BigEndian.PutUint16(resource)...) // nfgenmsg
			return mdnetlink.Message{Header: mdnetlink.Header{Type: typ, Flags: mdnetlink.Request | flags}, Data: append(head, data...)}
		}
		_, err = socket.SendMessages([]mdnetlink.Message{
			message(unix.NFNL_MSG_BATCH_BEGIN, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, 0, nil),
			message(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE, unix.NFPROTO_INET, 0, mdnetlink.Create, plain),
			message(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE, unix.NFPROTO_INET, 0, 0, plain),
			message(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE, unix.NFPROTO_INET, 0, mdnetlink.Acknowledge|mdnetlink.Create|mdnetlink.Excl, owned),
			message(unix.NFNL_MSG_BATCH_END, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, 0, nil),
		})
	}
	if err == nil {
		_, err = socket.Receive()
	}
	if err != nil {
		_ = c.CloseLasting() // its table ends with it
		return nil, err
	}
	return c, nil
}

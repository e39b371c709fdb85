// Package verdict follows packets between pods through the rules of other programs' firewalls, purely. The rooms iptables
// and nft translate rules of theirs to Rule; what they cannot translate matches perhaps.
//
//	packet.go   the packets that are followed
//	verdict.go  Rules, and what becomes of a packet in them
package verdict

// Match says whether a packet matches.
type Match uint8

// No comes first, so that what is not known to match does not.
const (
	No Match = iota
	Perhaps
	Yes
)

// Kind is what a rule does with a packet that matches.
type Kind uint8

// Next is what rules do that only count or mark.
const (
	Next Kind = iota
	Accept
	Drop // or reject
	Return
	Jump
	Goto
)

// Action is what a rule does.
type Action struct {
	Kind  Kind
	Chain string // of Jump and Goto
}

// Rule is one of a chain.
type Rule struct {
	Text string // how an operator finds it
	// Ask says whether a packet matches, and what becomes of it then. meant: the rule is about this packet's addresses or
	// interfaces, and accepts some of what has them: its author has thought of the pods.
	Ask func(Packet) (match Match, does Action, meant bool)
}

// Chain is a list of rules.
type Chain struct {
	Rules []Rule
	Drops bool   // its policy
	Name  string // how an operator finds it
}

// Chains are those of one table.
type Chains map[string]Chain

// Fate is what becomes of a packet.
type Fate struct {
	Dropped bool
	By      string // the rule or policy
	Unsure  bool   // an earlier rule may have accepted it
	Meant   bool   // some rule accepts part of what has this packet's addresses
}

// maxDepth bounds how far jumps are followed; nftables allows 16.
const maxDepth = 16

// Of follows a packet from a chain that a hook calls.
func (cs Chains) Of(base string, p Packet) Fate {
	f := Fate{}
	end := cs.walk(base, p, &f, maxDepth, true)
	if end == Next || end == Return {
		end = Accept
		if c := cs[base]; c.Drops {
			end, f.By = Drop, c.Name+", policy drop"
		}
	}
	f.Dropped = end == Drop
	return f
}

// walk returns how a chain ends: Accept, Drop, or Next if nothing there decides. sure is false where it was reached by a
// rule that matches perhaps: what is dropped there is policy, what is accepted may have been.
func (cs Chains) walk(chain string, p Packet, f *Fate, depth int, sure bool) Kind {
	if depth == 0 {
		return Next
	}
	for _, r := range cs[chain].Rules {
		match, does, meant := r.Ask(p)
		f.Meant = f.Meant || meant
		if match == No {
			continue
		}
		certain := sure && match == Yes
		end := does.Kind
		if end == Jump || end == Goto {
			if end = cs.walk(does.Chain, p, f, depth-1, certain); end == Next && does.Kind == Goto && certain {
				return Next
			}
		}
		switch {
		case end == Next, end == Return && does.Kind != Return:
		case !certain && end == Accept:
			f.Unsure = true
		case !certain && end == Return && sure: // what follows may not be asked
			f.Unsure = true
		case !certain:
		case end == Drop:
			if f.By == "" {
				f.By = r.Text
			}
			return Drop
		default:
			return end
		}
	}
	return Next
}

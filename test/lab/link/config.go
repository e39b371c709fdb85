package link

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Config describes a link.
type Config struct {
	Up   Direction `json:"up"`   // from TAP A to TAP B
	Down Direction `json:"down"` // from TAP B to TAP A
}

// Both returns a link that is the same in both directions.
func Both(d Direction) Config { return Config{Up: d, Down: d} }

// Check returns an ErrConfig when one of the directions makes no sense.
func (c Config) Check() error { return errors.Join(c.Up.Check(), c.Down.Check()) }

// Direction describes one direction of a link. The zero value is a perfect wire.
// As text, which is also its JSON form, it is what String returns.
type Direction struct {
	Rate      int64         // bit/s of Ethernet frames, without preamble and checksum; 0 is unlimited
	Burst     int64         // bytes that may pass together after as much idle time; 0 is an exact line
	Queue     int64         // bytes waiting for the line, the one on it included; 0 is unlimited
	QueueTime time.Duration // the same as time at Rate; with both, the smaller counts
	Delay     time.Duration // from the line's end to the other side
	Jitter    time.Duration // up to this much more delay, evenly spread; keeps the order
	Reorder   float64       // share of frames that come ReorderBy late and let others overtake
	ReorderBy time.Duration // 0 means DefaultReorderBy
	Loss      float64       // share of frames lost, each on its own, after they took their time on the line
	Duplicate float64       // share of the others that come twice, one right behind the other
	Hole      int           // IP packets larger than this many bytes vanish; 0 is none
}

// DefaultReorderBy is how late a reordered frame is when nothing else is said.
const DefaultReorderBy = 5 * time.Millisecond

// etherHeader is the length of a frame without its packet.
const etherHeader = 14

// Check returns an ErrConfig when the direction makes no sense.
func (d Direction) Check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
	}
	switch {
	case d.Rate < 0, d.Burst < 0, d.Queue < 0, d.QueueTime < 0, d.Delay < 0, d.Jitter < 0, d.ReorderBy < 0, d.Hole < 0:
		return bad("negative value in %q", d)
	case !(d.Loss >= 0 && d.Loss <= 1):
		return bad("loss %v is no share", d.Loss)
	case !(d.Reorder >= 0 && d.Reorder <= 1):
		return bad("reorder %v is no share", d.Reorder)
	case !(d.Duplicate >= 0 && d.Duplicate <= 1):
		return bad("duplicate %v is no share", d.Duplicate)
	case d.Rate == 0 && (d.Burst != 0 || d.Queue != 0 || d.QueueTime != 0):
		return bad("burst or queue without a rate")
	}
	return nil
}

// queueLimit returns the queue's length in bytes.
func (d Direction) queueLimit() int64 {
	limit := int64(math.MaxInt64)
	if d.Queue > 0 {
		limit = d.Queue
	}
	if d.QueueTime > 0 {
		limit = min(limit, int64(d.QueueTime.Seconds()*float64(d.Rate)/8))
	}
	return limit
}

// onLine returns how long the bytes take on the line.
func (d Direction) onLine(bytes int64) time.Duration {
	if d.Rate == 0 {
		return 0
	}
	return time.Duration(float64(bytes) * 8e9 / float64(d.Rate))
}

// String returns "rate=100M queue=50ms delay=25ms loss=1%" and the like; what is
// zero is left out.
func (d Direction) String() string {
	var words []string
	add := func(key, value string, is bool) {
		if is {
			words = append(words, key+"="+value)
		}
	}
	add("rate", siString(d.Rate), d.Rate != 0)
	add("burst", strconv.FormatInt(d.Burst, 10), d.Burst != 0)
	add("queue", strconv.FormatInt(d.Queue, 10), d.Queue != 0)
	add("queue", d.QueueTime.String(), d.QueueTime != 0)
	add("delay", d.Delay.String(), d.Delay != 0)
	add("jitter", d.Jitter.String(), d.Jitter != 0)
	add("reorder", shareString(d.Reorder), d.Reorder != 0)
	add("reorderby", d.ReorderBy.String(), d.ReorderBy != 0)
	add("loss", shareString(d.Loss), d.Loss != 0)
	add("duplicate", shareString(d.Duplicate), d.Duplicate != 0)
	add("hole", strconv.Itoa(d.Hole), d.Hole != 0)
	return strings.Join(words, " ")
}

// Parse reads what String writes: words KEY=VALUE, separated by blanks or commas.
//
//	rate=100M      bit/s; k, M and G are powers of 1000
//	queue=50ms     or bytes: queue=64000; both may be given
//	burst=3000     bytes
//	delay=25ms jitter=2ms reorderby=5ms
//	loss=1%        or a share: loss=0.01; likewise reorder, duplicate
//	hole=1280      bytes of the IP packet
//
// The error is an ErrConfig.
func Parse(text string) (Direction, error) {
	var d Direction
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' }) {
		key, value, _ := strings.Cut(word, "=")
		if err := d.set(key, value); err != nil {
			return Direction{}, fmt.Errorf("%w: %q: %w", ErrConfig, word, err)
		}
	}
	return d, d.Check()
}

func (d *Direction) set(key, value string) (err error) {
	switch key {
	case "rate":
		d.Rate, err = parseSI(value)
	case "burst":
		d.Burst, err = strconv.ParseInt(value, 10, 64)
	case "queue":
		bytes, notBytes := strconv.ParseInt(value, 10, 64)
		if notBytes == nil {
			d.Queue = bytes
		} else {
			d.QueueTime, err = time.ParseDuration(value)
		}
	case "delay":
		d.Delay, err = time.ParseDuration(value)
	case "jitter":
		d.Jitter, err = time.ParseDuration(value)
	case "reorder":
		d.Reorder, err = parseShare(value)
	case "reorderby":
		d.ReorderBy, err = time.ParseDuration(value)
	case "loss":
		d.Loss, err = parseShare(value)
	case "duplicate":
		d.Duplicate, err = parseShare(value)
	case "hole":
		d.Hole, err = strconv.Atoi(value)
	default:
		err = fmt.Errorf("no such property")
	}
	return err
}

// MarshalText is String.
func (d Direction) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is Parse.
func (d *Direction) UnmarshalText(text []byte) (err error) {
	*d, err = Parse(string(text))
	return err
}

const siUnits = " kMG"

func siString(v int64) string {
	i := 0
	for ; i < len(siUnits)-1 && v%1000 == 0; i++ {
		v /= 1000
	}
	return strings.TrimSpace(strconv.FormatInt(v, 10) + siUnits[i:i+1])
}

func parseSI(s string) (int64, error) {
	unit := 1.0
	for i := 1; i < len(siUnits); i++ {
		if digits, ok := strings.CutSuffix(s, siUnits[i:i+1]); ok {
			s, unit = digits, math.Pow(1000, float64(i))
			break
		}
	}
	v, err := strconv.ParseFloat(s, 64)
	if err == nil && !(math.Abs(v*unit) < 1e15) {
		err = strconv.ErrRange
	}
	return int64(v * unit), err
}

func shareString(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func parseShare(s string) (float64, error) {
	percent, is := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(percent, 64)
	if is {
		v /= 100
	}
	return v, err
}

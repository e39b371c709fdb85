package link

import (
	"encoding/json"
	"errors"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Direction{
		"":                                      {},
		"rate=100M queue=50ms delay=25ms":       {Rate: 100e6, QueueTime: 50 * ms, Delay: 25 * ms},
		"rate=1.5M,queue=64000 queue=1s":        {Rate: 1500e3, Queue: 64000, QueueTime: time.Second},
		"rate=9600 burst=1514 loss=3% hole=576": {Rate: 9600, Burst: 1514, Loss: 0.03, Hole: 576},
		"duplicate=2% hole=1280":                {Duplicate: 0.02, Hole: 1280},
		"jitter=2ms reorder=0.5 reorderby=1ms":  {Jitter: 2 * ms, Reorder: 0.5, ReorderBy: ms},
	} {
		got, err := Parse(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
		if again, err := Parse(got.String()); err != nil || again != got {
			t.Errorf("%q written as %q is read as %+v, %v", text, got, again, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"rate", "rate=", "rate=fast", "rate=-1", "rate=1e30", "rate=NaN", "speed=1M", "delay=25", "delay=-1ms",
		"loss=101%", "loss=-1%", "loss=NaN", "reorder=2", "duplicate=-1", "queue=50ms", "queue=100", "burst=100", "hole=-1",
		"rate=1M queue=-1s", "rate=1M queue=big",
	} {
		if d, err := Parse(text); !errors.Is(err, ErrConfig) {
			t.Errorf("%q: %+v, %v", text, d, err)
		}
	}
}

func TestConfigIsReadableJSON(t *testing.T) {
	c := Config{Up: Direction{Rate: 100e6, QueueTime: 50 * ms, Loss: 0.01}}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"up":"rate=100M queue=50ms loss=0.01","down":""}`; string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
	var got Config
	if err := json.Unmarshal(b, &got); err != nil || got != c {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("rate=100M queue=50ms delay=25ms loss=1% reorder=0.2 reorderby=1ms duplicate=3% hole=1280 burst=9 jitter=1us")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(d.String()); err != nil || again != d {
			t.Errorf("%q is %+v, its own text %q is %+v: %v", text, d, d, again, err)
		}
	})
}

package reference

import (
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// box is a box of a drawing.
type box struct{ x, y, width int }

const boxHeight = 44

// drawing returns the function that draws the text beside the picture: docs/images/NAME.txt.
func drawing(name string) func(root string) (string, error) {
	return func(root string) (string, error) {
		text, err := os.ReadFile(filepath.Join(root, "docs/images", name+".txt"))
		if err != nil {
			return "", err
		}
		return draw(name, string(text))
	}
}

func draw(name, text string) (string, error) {
	boxes := map[string]box{}
	var size, lines, over strings.Builder
	for n, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		wrong := fmt.Errorf("%s.txt:%d: %q is not understood", name, n+1, line)
		switch {
		case len(f) == 0 || f[0] == "#":
		case f[0] == "size" && len(f) == 3:
			fmt.Fprintf(&size, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" font-family="sans-serif" font-size="14">`+"\n", f[1], f[2])
			fmt.Fprintf(&size, `<rect width="%s" height="%s" fill="#fff"/>`+"\n", f[1], f[2])
		case f[0] == "box" && len(f) > 5:
			x, e1 := strconv.Atoi(f[2])
			y, e2 := strconv.Atoi(f[3])
			w, e3 := strconv.Atoi(f[4])
			if e1 != nil || e2 != nil || e3 != nil {
				return "", wrong
			}
			boxes[f[1]] = box{x, y, w}
			fmt.Fprintf(&over, `<rect x="%d" y="%d" width="%d" height="%d" rx="6" fill="#e8f0fa" stroke="#14324f"/>`+"\n", x, y, w, boxHeight)
			fmt.Fprintf(&over, `<text x="%d" y="%d" text-anchor="middle" fill="#14324f">%s</text>`+"\n", x+w/2, y+27, html.EscapeString(strings.Join(f[5:], " ")))
		case f[0] == "line" && len(f) > 2:
			a, isA := boxes[f[1]]
			b, isB := boxes[f[2]]
			if !isA || !isB {
				return "", wrong
			}
			dash, words := "", f[3:]
			if len(words) > 0 && words[0] == "dashed" {
				dash, words = ` stroke-dasharray="6 4"`, words[1:]
			}
			x1, y1, x2, y2 := a.x+a.width/2, a.y+boxHeight/2, b.x+b.width/2, b.y+boxHeight/2
			fmt.Fprintf(&lines, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#2b6cb0" stroke-width="2"%s/>`+"\n", x1, y1, x2, y2, dash)
			if len(words) > 0 {
				x, y := (x1+x2)/2, (y1+y2)/2-6
				if y1 == y2 && (x2-x1 < 200) { // between boxes that stand close: below them
					y = y1 + boxHeight/2 + 16
				}
				fmt.Fprintf(&over, `<text x="%d" y="%d" text-anchor="middle" font-size="12" fill="#2b6cb0" stroke="#fff" stroke-width="5" paint-order="stroke">%s</text>`+"\n", x, y, html.EscapeString(strings.Join(words, " ")))
			}
		default:
			return "", wrong
		}
	}
	return size.String() + lines.String() + over.String() + "</svg>\n", nil
}

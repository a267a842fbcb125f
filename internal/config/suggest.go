package config

import "fmt"

// Suggest returns a question that names the known name nearest to one that is
// not known, or nothing if none is near.
func Suggest(name string, known []string) string { return didYouMean(nearest(name, known)) }

func didYouMean(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(": did you mean %s?", name)
}

// nearest returns the known name that a slip of the hand makes name out of,
// or nothing.
func nearest(name string, known []string) string {
	best, distance := "", 1+max(2, len(name)/4)
	for _, k := range known {
		if d := edits(name, k); d < distance {
			best, distance = k, d
		}
	}
	return best
}

// edits returns how many bytes must be inserted, deleted, changed or swapped
// with their neighbour to make b out of a.
func edits(a, b string) int {
	two, one, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range one {
		one[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := one[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, one[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], two[j-2]+1)
			}
		}
		two, one, row = one, row, two
	}
	return one[len(b)]
}

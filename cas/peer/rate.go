package peer

import (
	"context"
	"fmt"

	"golang.org/x/time/rate"
)

// Limiter bounds bytes a second. A nil one does not. One may be shared by
// several transfers.
type Limiter struct{ bucket *rate.Limiter }

// maxSlice is how many bytes one slice has at most.
const maxSlice = 256 << 10

// NewLimiter returns a limiter, nil if bytesPerSecond is not positive. About
// a quarter of a second's bytes may come at once.
func NewLimiter(bytesPerSecond int64) *Limiter {
	if bytesPerSecond <= 0 {
		return nil
	}
	burst := min(max(bytesPerSecond/4, 4<<10), 1<<20)
	return &Limiter{rate.NewLimiter(rate.Limit(bytesPerSecond), int(burst))}
}

// wait blocks until n bytes may pass, or ctx ends.
func (l *Limiter) wait(ctx context.Context, n int) error {
	if l == nil {
		return nil
	}
	for n > 0 {
		part := min(n, l.bucket.Burst())
		if err := l.bucket.WaitN(ctx, part); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%w: %w", context.DeadlineExceeded, err) // it could not pass in time
		}
		n -= part
	}
	return nil
}

// slice is the size of slices that keeps the flow even.
func (l *Limiter) slice() int {
	if l == nil {
		return maxSlice
	}
	return min(maxSlice, l.bucket.Burst())
}

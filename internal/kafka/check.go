package kafka

import (
	"context"
	"errors"
)

// Check is in progress.
func (a *Admin) Check(ctx context.Context, allowOld bool) error {
	_, err := metadata(ctx, a.cl)
	return errors.Join(err)
}

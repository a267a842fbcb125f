package messaging

import "time"

// StepClock sets the worker's wall clock forward, or back.
func StepClock(w *Worker, by time.Duration) { w.clock.step.Add(int64(by)) }

package cas

// faults lets a test see each step that the store takes on the disk, and end
// it there with an error. It is nil in use.
type faults func(step string) error

// at announces a step that is about to be taken, or was.
func (f faults) at(step string) error {
	if f == nil {
		return nil
	}
	return f(step)
}

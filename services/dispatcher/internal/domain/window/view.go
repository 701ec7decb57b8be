package window

type effects struct{}

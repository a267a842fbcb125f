package broker

func runChild() {}

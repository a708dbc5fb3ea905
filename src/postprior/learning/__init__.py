"""What happens in time: a belief meets a part of data and becomes the next belief."""

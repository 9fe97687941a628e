"""What the library is compared with: the same trainings, written the way users of other packages write them."""

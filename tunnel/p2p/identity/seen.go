package identity

// Here and Away are a relay's answers to a controller, by SeenProtocol.
const Here, Away = "here", "away"
